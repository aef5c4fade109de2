"""A real sshd on loopback, with keys and a configuration of its own in a folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.instance import eventually, free_port

PRIVILEGE_SEPARATION = Path("/run/sshd")  # compiled into sshd; only root's needs it

SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
SetEnv "PATH={path}"
"""

CLIENT = """#!/bin/sh
exec {ssh} -F none -o BatchMode=yes -o ConnectTimeout=5 -o IdentitiesOnly=yes -i {folder}/user \\
    -o UserKnownHostsFile={folder}/known_hosts -o StrictHostKeyChecking=yes "$@"
"""


def find_sshd() -> str:
    """Return its path, which sshd needs to be absolute; skip the test if a part is missing."""
    found = {
        name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("sshd", "ssh", "ssh-keygen")
    }
    if missing := [name for name, path in found.items() if path is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    return str(found["sshd"])


@contextmanager
def an_sshd(folder: Path) -> Iterator[tuple[int, str]]:
    """Run one: its port, and the text of a script that is an ssh to it."""
    sshd, port = find_sshd(), free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    key = " ".join((folder / "host.pub").read_text().split()[:2])
    (folder / "known_hosts").write_text(f"[localhost]:{port} {key}\n")
    (folder / "sshd_config").write_text(SERVER.format(port=port, folder=folder, path=os.environ["PATH"]))
    made = os.geteuid() == 0 and not PRIVILEGE_SEPARATION.exists()
    if made:
        PRIVILEGE_SEPARATION.mkdir(mode=0o755)
    server = subprocess.Popen([sshd, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.DEVNULL)
    try:
        eventually("sshd listens", lambda: _listens(port))
        yield port, CLIENT.format(ssh=shutil.which("ssh"), folder=folder)
    finally:
        server.terminate()
        server.wait()
        if made:
            PRIVILEGE_SEPARATION.rmdir()


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
