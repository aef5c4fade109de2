"""The disk of rank 0 is full: Flux refuses each lease at once. The manager tries again, ever more seldom."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from nodemanager.core.nodes import Launch
from nodemanager.planner.policy import Calls
from nodemanager.simulation.flux.port import SimulatedFluxPort
from tests.benchmarks.burst_world import Burst

NODES = 20
FULL_S = 40.0


def test_a_full_disk_is_no_busy_loop_and_buying_goes_on_once_it_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Burst(NODES, Calls())
    tried: list[float] = []
    record = SimulatedFluxPort.record

    def counted(port: SimulatedFluxPort, launches: Sequence[Launch]) -> None:
        tried.append(run.world.now_s)
        record(port, launches)

    monkeypatch.setattr(SimulatedFluxPort, "record", counted)
    run.flux.faults.record_full = True
    run.submit()
    with capture_logs() as said:
        run.world.advance_by(FULL_S)
    # Six tries: after 1, 2, 4, 8 and 16 s. Each boot is told once, each try in a few lines.
    assert 3 <= len(tried) <= 6
    boots = [line for line in said if str(line.get("order", "")).startswith("BootNode")]
    assert len(boots) == NODES
    assert len([line for line in said if line["event"] == "node"]) == NODES
    assert len(said) - 2 * NODES <= 6 * len(tried) + 5, "as many for 20 nodes as for one"
    assert [line["event"] for line in said].count("record_not_written") == 1
    shown = run.published[-1]
    assert {reason.code for reason in shown.plan.jobs.values()} == {"record_not_written"}
    assert run.provider.ordered == []

    run.flux.faults.record_full = False
    run.until(lambda: run.count_joined() == NODES, within_s=120.0)
    assert run.published[-1].plan.warnings == ()
