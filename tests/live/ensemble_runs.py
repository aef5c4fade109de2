"""``ensemble run`` as a process on a real instance."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.live.instance import LiveInstance, eventually, why_no_flux
from tests.paths import ROOT

WITHIN_S = 90.0  # several processes of Python start in each of these tests
DATA = ROOT / "tests" / "data" / "ensembles"


@contextmanager
def two_nodes() -> Iterator[LiveInstance]:
    """An instance of two nodes of two cores that run jobs; skips the test where there is no Flux."""
    if why_not := why_no_flux():
        pytest.skip(why_not)
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as directory:
        live = LiveInstance(Path(directory), slots=2)
        try:
            live.start_head()
            live.start_slot(1)
            live.start_slot(2)
            yield live
        finally:
            live.reap()


class EnsembleProcess:
    """One process of ``ensemble run --json``, and the events that it has printed into ``folder``."""

    def __init__(self, uri: str, folder: Path, file: Path, *options: str, cwd: Path = ROOT) -> None:
        self._output = folder / f"ensemble-{os.urandom(4).hex()}.jsonl"
        self._uri = uri
        self._errors = self._output.with_suffix(".err")
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*COMMAND, "run", str(file), "--json", "--uri", uri, *options],
                cwd=cwd,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=errors,
            )

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._output.read_text().splitlines() if line.endswith("}")]

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def fired(self) -> list[tuple[int, int]]:
        """The rules that ran, each with the number of its run."""
        return [(event["rule"], event["run"]) for event in self.events if event["event"] == "rule"]

    def wait(self, within_s: float = WITHIN_S) -> int:
        return self.process.wait(within_s)

    def until(self, what: str, within_s: float = WITHIN_S) -> None:
        eventually(what, lambda: any(event["event"] == what for event in self.events), within_s)

    def stop(self, name: str) -> None:
        """End the run by its name."""
        subprocess.run([*COMMAND, "stop", name, "--uri", self._uri], cwd=ROOT, check=True, capture_output=True)
        self.process.wait(10)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def summary(self) -> Mapping[str, Any]:
        summary: Mapping[str, Any] = self.events[-1]["summary"]
        return summary

    def counts(self, group: str) -> dict[str, int]:
        return {name: count for name, count in self.summary()["groups"][group].items() if count}


COMMAND = (sys.executable, "-m", "nodemanager", "ensemble")


def ask(instance: LiveInstance, *arguments: str) -> str:
    """Run another verb of ``ensemble``. Returns what it printed."""
    return ask_at(instance.uri, *arguments)


def ask_at(uri: str, *arguments: str) -> str:
    return subprocess.run(
        [*COMMAND, *arguments, "--uri", uri], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def groups_of_jobs(instance: LiveInstance) -> list[str]:
    """The groups of all jobs of the instance, sorted."""
    groups = []
    for job in instance.run("jobs", "-a", "-n", "-c", "0", "-o", "{id.dec}").split():
        spec = json.loads(instance.run("job", "info", job, "jobspec"))
        groups.append(spec["attributes"].get("user", {}).get("group", ""))
    return sorted(groups)
