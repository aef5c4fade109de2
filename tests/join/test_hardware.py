"""A node's report about its own machine, from the client to the manager."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodemanager.core.facts import NodeMeasured
from nodemanager.core.nodes import JoinPhase
from nodemanager.core.slots import Hardware
from nodemanager.join.admission import RefusalCode
from nodemanager.join.flux_node_join import JoinClient, count_cores, count_gpus, memory_bytes
from nodemanager.join.ticket_store import THREADS_MAX
from tests.join.admission import LAUNCH, SOURCE, AdmissionRig, code, granted
from tests.join.test_client_decides import FakeMachine

SAID = {"cores": 2, "threads": 4, "gpus": 1, "memory_bytes": 2**34}


# --- found ------------------------------------------------------------------------------------------------


def a_device(folder: Path, name: str, kind: str, vendor: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "class").write_text(f"{kind}\n")
    (folder / name / "vendor").write_text(f"{vendor}\n")


@pytest.mark.parametrize(
    ("kind", "vendor", "gpus"),
    [
        ("0x030200", "0x10de", 1),  # a 3D controller
        ("0x030000", "0x10de", 1),  # a VGA controller of NVIDIA's
        ("0x038000", "0x1002", 1),  # a display controller
        ("0x120000", "0x1002", 1),  # an accelerator
        ("0x030000", "0x1013", 0),  # a console
        ("0x020000", "0x8086", 0),  # a network card
    ],
)
def test_gpus_are_counted_on_the_bus(tmp_path: Path, kind: str, vendor: str, gpus: int) -> None:
    a_device(tmp_path / "devices", "0000:00:1e.0", kind, vendor)
    (tmp_path / "dev").mkdir()
    assert count_gpus(tmp_path / "devices", tmp_path / "dev") == gpus


def test_where_the_bus_is_not_shown_device_nodes_are_counted(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert count_gpus(tmp_path / "no bus", tmp_path) == 2


def test_this_machine_has_some_of_each() -> None:
    assert count_cores([0]) == 1
    assert memory_bytes() > 2**20


def test_missing_memory_in_proc_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\n")
    with pytest.raises(ValueError, match="MemTotal"):
        memory_bytes(tmp_path / "meminfo")


# --- said -------------------------------------------------------------------------------------------------


def test_the_hardware_is_the_first_report_before_the_broker_starts() -> None:
    machine = FakeMachine(hardware=SAID)
    JoinClient(machine, "cloud1-1", "t", 100.0).step()
    assert machine.done[:3] == ["redeem", "report", "START"]


def test_a_machine_that_does_not_say_joins_all_the_same() -> None:
    machine = FakeMachine()
    JoinClient(machine, "cloud1-1", "t", 100.0).step()
    assert machine.done[:2] == ["redeem", "START"]


def test_it_comes_out_of_the_ledger_as_a_fact() -> None:
    rig = AdmissionRig()
    granted(rig.admission.report(LAUNCH, rig.key(), JoinPhase.MEASURED, json.dumps(SAID), SOURCE))
    assert NodeMeasured(LAUNCH, Hardware(2, 4, 1, 2**34), 0.0) in [fact for _, fact in rig.store.reports(0)]


@pytest.mark.parametrize("more", ["", " " * 5000, f', "note": "{"x" * 5000}"'])
def test_the_manager_reads_the_hardware_whatever_other_keys_are_reported(more: str) -> None:
    rig = AdmissionRig()
    said = json.dumps(SAID)[:-1] + more + "}"
    granted(rig.admission.report(LAUNCH, rig.key(), JoinPhase.MEASURED, said, SOURCE))
    assert NodeMeasured(LAUNCH, Hardware(2, 4, 1, 2**34), 0.0) in [fact for _, fact in rig.store.reports(0)]


@pytest.mark.parametrize(
    "said",
    [
        "",
        "[]",
        "{}",
        json.dumps(SAID | {"cores": -1}),
        json.dumps(SAID | {"gpus": "1"}),
        json.dumps(SAID | {"cores": 5}),  # more than threads
        json.dumps(SAID | {"cores": THREADS_MAX + 1, "threads": THREADS_MAX + 1}),
        json.dumps(SAID | {"gpus": 10**9}),
        json.dumps(SAID | {"memory_bytes": 10**400}),
        '{"a":' + "[" * 3000,
    ],
)
def test_what_is_no_hardware_is_refused(said: str) -> None:
    rig = AdmissionRig()
    assert code(rig.admission.report(LAUNCH, rig.key(), JoinPhase.MEASURED, said, SOURCE)) == RefusalCode.MALFORMED
