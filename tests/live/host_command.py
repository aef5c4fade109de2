"""The command of a site with own hosts: ``host_command.py FOLDER NODE wake|sleep|probe``. A host is processes.

A host that is awake has an init in a session of its own, which runs the user-data. To put it to sleep is to cut its
power: all its processes end at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

INIT = '"$0"; while :; do sleep 86400; done'  # as a machine does, it outlives its user-data


def init_of(home: Path) -> psutil.Process | None:
    """The init of a host; None if it is asleep."""
    try:
        pid, began = (home / "init").read_text(encoding="ascii").split()
        init = psutil.Process(int(pid))
        lives = repr(init.create_time()) == began and init.status() != psutil.STATUS_ZOMBIE
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None
    return init if lives else None


def cut_power(home: Path) -> None:
    """End every process of a host."""
    if (init := init_of(home)) is None:
        return
    processes = [init, *init.children(recursive=True)]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def wake(home: Path, user_data: str) -> psutil.Popen | None:
    """Boot a host with its user-data and return its init, unless it is awake."""
    if init_of(home) is not None:
        return None
    (home / "t").mkdir(parents=True, exist_ok=True)
    script = home / "user-data"
    script.write_text(user_data, encoding="utf-8")
    script.chmod(0o700)
    with (home / "console.log").open("ab") as log:
        init = psutil.Popen(
            ["/bin/sh", "-c", INIT, str(script)],
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home / "t")},
        )
    (home / "init").write_text(f"{init.pid} {init.create_time()!r}", encoding="ascii")
    return init


def main(folder: str, node: str, verb: str) -> int:
    home = Path(folder).resolve() / node
    if verb == "probe":
        return 0 if init_of(home) is not None else 1
    if verb == "wake":
        wake(home, sys.stdin.read())
    else:
        cut_power(home)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
