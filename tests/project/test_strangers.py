"""Each row of the table in doc/security.md: an input past its bound is refused as the row says."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import partial

import pytest
import yaml

from nodemanager.cloud.minicluster.client import _read_event
from nodemanager.core.jobs import JobId
from nodemanager.core.notation import HOSTS_MAX, IDS_MAX, expand_hostlist, parse_idset
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import Rank, SlotName
from nodemanager.core.untrusted import UnreadableText, read_json, read_lines, read_message, read_yaml, yaml_loader
from nodemanager.delegation.relay import OUTPUT, OutputRelay
from nodemanager.ensemble.file.schema import EnsembleError, read_ensemble
from nodemanager.ensemble.inputs import read_inputs
from nodemanager.ensemble.operator import read_change
from nodemanager.flux.delegate import peer
from nodemanager.flux.parse import eventlog
from nodemanager.flux.parse.constraint import TERMS_MAX, read_constraint
from nodemanager.flux.parse.eventlog import read_job_end
from nodemanager.flux.parse.job_journal import JobQueue
from nodemanager.flux.parse.jobspec import JOBSPEC_BYTES_MAX
from nodemanager.flux.parse.resources import UNITS_MAX, read_holdings
from nodemanager.flux.records import data_safe, given_back, own
from nodemanager.flux.resubmit import unwrap_jobspec
from nodemanager.join.exchange import decode_roster
from nodemanager.join.identity.google import _object
from nodemanager.join.ticket_store import decode_hardware
from nodemanager.whatif.workload.event_log import _job
from tests.paths import ROOT

DEEP = "[" * 1_900 + "]" * 1_900
DEEP_OBJECT = '{"a":' * 982 + "1" + "}" * 982
SUBMIT = '{"name":"submit","timestamp":1,"context":{"userid":1,"urgency":16}}'
JOBSPEC = (
    '{"version":1,"resources":[{"type":"slot","count":1,"with":[{"type":"core","count":1}]}],'
    '"attributes":{"system":{"duration":0},"user":USER}}'
)


def ten_times(ranks: str, cores: str) -> Mapping[str, object]:
    """An R of less than 1 kB with ten entries for the same ranks."""
    entry = {"rank": ranks, "children": {"core": cores}}
    return {"version": 1, "execution": {"R_lite": [entry] * 10, "expiration": 0}}


# 25 lines, each with 55 brackets around the line before.
DEEP_BY_ALIASES = "\n".join(
    f"a{line}: &a{line} {'[' * 55}{f'*a{line - 1}' if line else '1'}{']' * 55}" for line in range(25)
)
JOBS = "jobs: [{{name: a, command: b, count: {}}}]\nrules: []"
LONG_NUMBERS = ["9" * 5_000, "0x" + "f" * 4_000, "0b" + "1" * 20_000, "0" + "7" * 6_000, "1" + ":1" * 4_000]
# By the first words of the row. Each raises, but those of ``STILL``.
REFUSED: dict[str, list[Callable[[], object]]] = {
    "KVS records": [lambda: own.decode_lease(DEEP, SlotName("a")), lambda: data_safe.decode(DEEP)],
    "node lists and id sets": [
        lambda: expand_hostlist(f"n[0-{HOSTS_MAX}]"),
        lambda: parse_idset(f"0-{IDS_MAX}"),
        lambda: read_holdings(
            {
                "version": 1,
                "execution": {"R_lite": [{"rank": "0", "children": {"core": f"0-{UNITS_MAX}"}}], "expiration": 0},
            }
        ),
    ],
    "resources": [lambda: read_holdings(ten_times("0-999", "0-15999"))],
    "constraint": [lambda: read_constraint({"properties": ["a"] * (TERMS_MAX + 1)}, "constraints")],
    "signed jobspec": [lambda: unwrap_jobspec("a." + base64.b64encode(DEEP_OBJECT.encode()).decode() + ".c")],
    "requests of members": [lambda: read_change("a", "grow", DEEP_OBJECT)],
    "log of an ensemble": [lambda: read_inputs(DEEP)],
    "ensemble file": [
        lambda: read_ensemble("jobs: " + DEEP),
        lambda: read_ensemble("jobs: [{a: !!bool x}]"),
        lambda: read_ensemble(DEEP_BY_ALIASES),
        *(partial(read_ensemble, JOBS.format(it)) for it in LONG_NUMBERS),
    ],
    "machine reported by a node": [lambda: decode_hardware(DEEP), lambda: decode_hardware(" " * 4_097)],
    "roster": [lambda: decode_roster(DEEP)],
    "identities": [lambda: _object(base64.urlsafe_b64encode(DEEP_OBJECT.encode()).decode().rstrip("="))],
    "lists and watches of providers": [lambda: _read_event(DEEP_OBJECT.encode())],
    "traces": [lambda: _job(DEEP_OBJECT, 0.0)],
}


def test_each_row_refuses_what_exceeds_its_bound() -> None:
    page = (ROOT / "doc" / "security.md").read_text(encoding="utf-8")
    for row, calls in REFUSED.items():
        assert f"\n| {row}" in page, row
        for call in calls:
            with pytest.raises((ValueError, CloudError, EnsembleError)):
                call()


def test_ranks_in_several_entries_are_joined() -> None:
    held, _ = read_holdings(ten_times("0-999", "0-127"))
    assert len(held) == 1000
    assert {it.cores for it in held} == {128}


def test_a_long_number_of_a_yaml_file_is_refused_before_it_is_made() -> None:
    loader = yaml_loader("1" + ":1" * 4_000 + "\n")
    node = loader.get_single_node()
    loader.construct_yaml_int = None  # PyYAML's own, which takes time by the square of the length
    with pytest.raises(yaml.YAMLError, match="more than 20 characters: 1:1:1"):
        loader.construct_object(node)
    for text, number in {"-12345678901234567890": -12345678901234567890, "1:30": 90, "0x10": 16, "1_0": 10}.items():
        assert read_yaml(text) == number
    for text in ("!!float 1" + ":1" * 4_000, DEEP_BY_ALIASES, "a: &a [*a]", "[" * 65 + "]" * 65):
        with pytest.raises(UnreadableText):
            read_yaml(text)
    assert read_yaml("[" * 64 + "]" * 64)


def unreadable(messages: list[str]) -> dict[int, str]:
    queue = JobQueue()
    for text in messages:
        response = read_message(text)
        for event in response["events"]:
            queue.apply(
                response["id"], event["name"], event["timestamp"], event["context"], response.get("jobspec")
            )
    seen = queue.complete(0.0)
    assert {job.id for job in seen.jobs} == {JobId(len(messages))}  # the last is sound
    return {int(bad.id): bad.why for bad in seen.unreadable}


def test_a_jobspec_past_its_bounds_makes_that_job_unreadable() -> None:
    long = '"' + "a" * JOBSPEC_BYTES_MAX + '"'
    large = JOBSPEC.replace('"duration":0', f'"duration":0,"queue":{long}')
    jobspecs = [JOBSPEC.replace("USER", DEEP_OBJECT), large.replace("USER", "1"), JOBSPEC.replace("USER", "1")]
    whys = unreadable(
        [f'{{"id":{n},"events":[{SUBMIT}],"jobspec":{it}}}' for n, it in enumerate(jobspecs, start=1)]
    )
    assert whys[1] == "jobspec: it nests deeper than 64 levels"
    assert "256 KiB" in whys[2]


def test_an_event_past_its_bounds_makes_that_job_unreadable_and_a_memo_only_itself() -> None:
    sound = JOBSPEC.replace("USER", "1")
    update = f'{{"name":"jobspec-update","timestamp":1,"context":{{"attributes.system.duration":{DEEP}}}}}'
    memo = f'{{"name":"memo","timestamp":1,"context":{{"a":{DEEP}}}}}'
    whys = unreadable(
        [
            f'{{"id":1,"events":[{SUBMIT},{update}],"jobspec":{sound}}}',
            f'{{"id":2,"events":[{SUBMIT},{memo}],"jobspec":{sound}}}',
        ]
    )
    assert whys.keys() == {1}
    assert "nests deeper" in whys[1]


def test_the_end_of_a_job_is_read_beside_its_deep_memo() -> None:
    memo = f'{{"name":"memo","timestamp":1,"context":{{"a":{DEEP}}}}}\n'
    finish = '{"name":"finish","timestamp":2,"context":{"status":0}}\n{"name":"clean","timestamp":3}'
    end = read_job_end(memo + finish)
    assert end is not None
    assert end.result == "COMPLETED"


def test_deep_output_of_a_copy_is_one_note_at_home() -> None:
    line = f'{{"name":"data","timestamp":1,"context":{{"data":{DEEP}}}}}\n'
    relay = OutputRelay({}, 10_000, "there")
    passed = relay.take(OUTPUT, eventlog.read_output(line * 2))
    assert [read_json(it)["context"]["stream"] for it in passed.splitlines()] == ["stderr", "stderr"]


def test_a_line_of_a_copys_output_that_is_no_event_is_one_note_at_home() -> None:
    sound = '{"name":"data","timestamp":1,"context":{"data":"said"}}\n'
    lines = [sound, '{"name":"data",\n', "[]\n", '{"name":"data","timestamp":NaN}\n', sound]
    passed = read_lines(OutputRelay({}, 10_000, "there").take(OUTPUT, eventlog.read_output("".join(lines))))
    data = [read_json(it)["context"]["data"] for it in passed]
    note = "[an event of the output is left out: it cannot be read: "
    assert [it[: len(note)] for it in data] == ["said", note, note, note, "said"]


# A shell writes these raw into the eventlog: jansson does not escape them.
@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\u0085"])
def test_only_a_line_feed_ends_an_event(end: str) -> None:
    exception = f'{{"type":"a","severity":0,"note":"said{end}more"}}'
    log = f'{{"name":"exception","timestamp":1,"context":{exception}}}\n{{"name":"clean","timestamp":3}}\n'
    assert len(eventlog.read_eventlog(log)) == 2
    job_end = read_job_end(log)
    assert job_end is not None
    assert job_end.result == "FAILED"
    memo = f'{{"name":"memo","timestamp":1,"context":{{"a":"{end}","uri":"u","{given_back.MEMO}":"1"}}}}\n'
    r = '{"version":1,"execution":{"R_lite":[{"rank":"0-1","children":{"core":"0"}}],"expiration":0}}'
    assert given_back.read_given_back(memo, r, {Rank(0): 1, Rank(1): 1}) == {Rank(1)}
    assert len(data_safe.decode(f'{{"ranks":"1","mark":"{end}"}}\n').lines) == 1
    assert len(read_inputs(f'["refused",1,"key","why{end}"]\n')) == 1


def test_a_peers_short_answer_that_names_very_many_ids_lists_none(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[int] = []

    def counted(low: int, high: int) -> range:
        listed.append(high - low)
        return range(low, high)

    monkeypatch.setattr(peer, "range", counted, raising=False)
    entry = {"rank": "0-999999", "children": {"core": "0-999999"}}
    look = peer.LoadRound(0.0)
    look.answers[peer.RESOURCES] = {"all": {"execution": {"R_lite": [entry] * 300}}}
    with pytest.raises(ValueError, match="more than"):
        look.read(None)
    assert sum(listed) <= peer.RANKS_MAX
