"""The disk under rank 0 is full: Flux refuses each lease at once. Needs root, which mounts a small file system.

flux-core 0.88 does not recover when the disk has room again: its content database is damaged (SQLite error 11).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.live.elastic import Elastic
from tests.live.instance import why_no_flux
from tests.live.six_jobs import OFFERS
from tests.live.test_operate import verb

DISK_BYTES = 8 << 20
TRIES = 4


@pytest.fixture
def small_disk() -> Iterator[tuple[Elastic, Path]]:
    """A site whose rank 0 keeps its content on a small disk of its own."""
    if why_not := why_no_flux():
        pytest.skip(why_not)
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    with tempfile.TemporaryDirectory(prefix="fnm-", ignore_cleanup_errors=True) as folder:
        elastic = Elastic(Path(folder), OFFERS)
        disk = elastic.site.flux.bootstrap_dir / "state"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", disk],
            capture_output=True,
            text=True,
            check=False,
        )
        if mounted.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
        try:
            elastic.start_head()
            yield elastic, disk
        finally:
            elastic.reap()
            subprocess.run(["umount", "--lazy", disk], check=False)


def fill(disk: Path) -> None:
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_of_rank_0_is_told_and_tried_again_ever_more_seldom(small_disk: tuple[Elastic, Path]) -> None:
    elastic, disk = small_disk
    manager = elastic.start_manager()
    manager.until_said("claimed")
    fill(disk)
    job = elastic.submit("true", requires={"properties": ["cpu"]})

    def refused() -> list[float]:
        said = manager.said("flux_call_failed", order="RecordLaunches")
        return [line.get("failed_before", 0) for line in said]

    elastic.eventually("four writes were refused", lambda: len(refused()) >= TRIES)
    assert refused()[:TRIES] == list(range(TRIES))
    assert len(manager.said("record_not_written")) == 1
    shown = verb(elastic, "status")
    assert [it["code"] for it in shown["warnings"]] == ["record_not_written"]
    assert shown["jobs_waiting"] == {"record_not_written": 1}
    assert manager.status is None
    assert elastic.jobs()[job].began_at is None
