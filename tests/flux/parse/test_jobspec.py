from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.jobs import (
    ANYWHERE,
    All,
    AnyOf,
    Constraint,
    HasProperty,
    Job,
    JobId,
    JobState,
    Near,
    Not,
    OnHosts,
    OnRanks,
    Shape,
    UnreadableJob,
)
from nodemanager.core.slots import CloudName
from nodemanager.flux.parse.constraint import CHARACTERS_MAX, DEPTH_MAX, TERMS_MAX
from nodemanager.flux.parse.jobspec import (
    COUNT_MAX,
    WHY_MAX,
    DroppedJobspec,
    read_job,
    read_shape,
    trim_jobspec,
    with_updates,
)
from tests.paths import DATA

FORMS = {path.stem: json.loads(path.read_text()) for path in (DATA / "jobspecs").glob("*.json")}

SIMPLEST = Shape(slots=1, cores_per_slot=1)
A, B, C = HasProperty("a"), HasProperty("b"), HasProperty("c")


def a_slot(**changes: Any) -> dict[str, Any]:
    return {"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}], **changes}


def a_jobspec(*resources: object, **system: object) -> dict[str, Any]:
    return {
        "version": 1,
        "resources": list(resources) or [a_slot()],
        "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": 0, **system}},
    }


def read(jobspec: object) -> Job | UnreadableJob:
    return read_job(JobId(7), jobspec, state=JobState.SCHED, submitted_at=1.5, urgency=20, priority=21, userid=1000)


def read_well(jobspec: object) -> Job:
    job = read(jobspec)
    assert isinstance(job, Job), job.why
    return job


def refused(jobspec: object) -> str:
    job = read(jobspec)
    assert isinstance(job, UnreadableJob)
    assert job.id == 7
    return job.why


# --- the recorded forms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(FORMS))
def test_every_form_of_the_manual_pages_is_read_as_the_scheduler_reads_it(name: str) -> None:
    form = FORMS[name]
    job = read_well(form["jobspec"])
    shape = job.shape
    assert form["scheduler_reads"] == {
        "nodes": shape.nodes or 0,
        "slots": shape.slots * (shape.nodes or 1),
        "cores_per_slot": shape.cores_per_slot,
        "gpus_per_slot": shape.gpus_per_slot,
        "exclusive": shape.exclusive,
        "duration_s": job.duration_s,
    }


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("submit", SIMPLEST),
        ("submit-tasks", Shape(slots=4, cores_per_slot=1)),
        ("submit-cores-per-task", Shape(slots=2, cores_per_slot=3)),
        ("submit-gpus-per-task", Shape(slots=2, cores_per_slot=4, gpus_per_slot=1)),
        ("submit-nodes", Shape(slots=1, cores_per_slot=1, nodes=2, exclusive=True)),
        ("submit-nodes-tasks", Shape(slots=2, cores_per_slot=1, nodes=2)),
        ("submit-nodes-tasks-uneven", Shape(slots=3, cores_per_slot=2, nodes=2)),
        ("submit-nodes-tasks-cores-gpus", Shape(slots=2, cores_per_slot=2, gpus_per_slot=1, nodes=2)),
        ("submit-exclusive-tasks", Shape(slots=4, cores_per_slot=1, nodes=2, exclusive=True)),
        ("submit-cores", Shape(slots=16, cores_per_slot=1)),
        ("submit-cores-nodes", Shape(slots=1, cores_per_slot=4, nodes=4)),
        ("submit-cores-nodes-exclusive", Shape(slots=1, cores_per_slot=2, nodes=2, exclusive=True)),
        ("submit-tasks-per-node", Shape(slots=1, cores_per_slot=1, nodes=2, exclusive=True)),
        ("submit-gpus-per-node", Shape(slots=1, cores_per_slot=1, gpus_per_slot=2, nodes=2, exclusive=True)),
        ("submit-cc", SIMPLEST),
        ("submit-shape-range", Shape(slots=2, cores_per_slot=1)),
        ("submit-shape-range-open", Shape(slots=1, cores_per_slot=4, nodes=2)),
        ("submit-shape-range-stepped", Shape(slots=1, cores_per_slot=1, nodes=2)),
        ("submit-shape-idset", Shape(slots=1, cores_per_slot=1, nodes=1)),
        ("submit-shape-rack", Shape(slots=1, cores_per_slot=1, nodes=6)),
        ("submit-resources-json", Shape(slots=1, cores_per_slot=4, nodes=2, memory_bytes_per_slot=16 * 2**30)),
        ("submit-shape-memory", Shape(slots=1, cores_per_slot=2, memory_bytes_per_slot=8 * 2**30)),
        ("run", SIMPLEST),
        ("run-nodes-tasks", Shape(slots=2, cores_per_slot=2, nodes=2)),
        ("batch-slots", Shape(slots=4, cores_per_slot=2, gpus_per_slot=1)),
        ("batch-nodes", Shape(slots=1, cores_per_slot=1, nodes=2, exclusive=True)),
        ("batch-nodes-slots", Shape(slots=2, cores_per_slot=2, gpus_per_slot=1, nodes=2)),
        ("batch-directives", Shape(slots=4, cores_per_slot=1, nodes=2)),
        ("alloc-nodes", Shape(slots=1, cores_per_slot=1, nodes=2, exclusive=True)),
        ("alloc-nodes-exclusive", Shape(slots=2, cores_per_slot=1, nodes=2, exclusive=True)),
        ("bulksubmit-2", Shape(slots=2, cores_per_slot=2, nodes=2)),
    ],
)
def test_shapes_of_the_recorded_forms(name: str, shape: Shape) -> None:
    assert read_shape(FORMS[name]["jobspec"]) == shape


@pytest.mark.parametrize(
    ("name", "constraint"),
    [
        ("property", HasProperty("gpu")),
        ("properties", All((A, B))),
        ("comma", All((A, B, C))),
        ("space", All((A, B, C))),
        ("and", All((A, B))),
        ("or", AnyOf((A, B, C))),
        ("parentheses", AnyOf((All((A, B)), All((B, C))))),
        ("or-minus", AnyOf((B, Not(C)))),
        ("not", Not(AnyOf((A, B)))),
        ("not-and", Not(All((A, B)))),
        ("caret", Not(HasProperty("gpu"))),
        ("caret-comma", All((A, Not(B)))),
        ("host", OnHosts(("fluke[1-5]",))),
        ("hostlist", OnHosts(("fluke[01-03]",))),
        ("not-host", Not(OnHosts(("fluke7",)))),
        ("ranks", OnRanks(("1-3,7",))),
        ("not-ranks", Not(OnRanks(("0-2",)))),
    ],
)
def test_constraints_of_the_recorded_forms(name: str, constraint: Constraint) -> None:
    assert read_shape(FORMS[f"submit-requires-{name}"]["jobspec"]) == Shape(1, 1, constraint=constraint)


def test_what_else_a_job_needs() -> None:
    job = read_well(FORMS["batch-time-queue-requires"]["jobspec"])
    assert (job.id, job.state, job.submitted_at) == (7, JobState.SCHED, 1.5)
    assert (job.urgency, job.priority, job.userid) == (20, 21, 1000)
    assert (job.queue, job.duration_s, job.request.unheeded) == ("batch", 7200.0, ())


def test_dependencies_do_not_change_the_shape() -> None:
    assert read_shape(FORMS["submit-dependency-afterok"]["jobspec"]) == SIMPLEST


def test_requests_that_no_scheduler_respects_are_listed() -> None:
    assert read_well(FORMS["submit-shape-memory"]["jobspec"]).request.unheeded == ("memory",)
    assert read_well(FORMS["submit-shape-socket"]["jobspec"]).request.unheeded == ("socket",)


# --- what is said to us alone -----------------------------------------------------------------------------


def test_the_memory_of_a_slot_and_one_zone_for_all_nodes_are_read_from_the_attributes() -> None:
    """The attributes as ``flux submit --setattr=node-manager.memory=1.5GiB ...`` writes them."""
    job = read_well(a_jobspec(**{"node-manager": {"memory": "1.5GiB", "one-zone": 1}}))
    assert job.shape == Shape(1, 1, memory_bytes_per_slot=3 * 2**29, one_zone=True)
    assert job.request.unheeded == ("memory", "one-zone")
    assert read_well(a_jobspec(**{"node-manager": {"one-zone": False}})).shape == SIMPLEST


def with_wishes(**wishes: object) -> Job:
    return read_well(a_jobspec(**{"node-manager": wishes}))


def test_where_a_job_s_data_is_and_how_much_it_reads_are_read_from_the_attributes() -> None:
    """As ``flux submit --setattr=node-manager.near=east --setattr=node-manager.data=200GiB`` writes them."""
    job = with_wishes(near="east", data="200GiB")
    assert job.shape == Shape(1, 1, near=Near(CloudName("east"), 200 * 2**30))
    assert (job.request.unheeded, job.request.near_fault) == (("near",), "")
    assert with_wishes(near="east").shape.near == Near(CloudName("east"))


@pytest.mark.parametrize("size_bytes", [0, 1, 63, 64, 65, 2**30, 3 * 2**29, 200 * 2**30, 2**40 - 1, 2**49])
def test_sizes_of_data_are_rounded_up_so_that_there_are_few(size_bytes: int) -> None:
    near = with_wishes(near="east", data=f"{size_bytes}B").shape.near
    assert near is not None
    assert size_bytes <= near.data_bytes <= size_bytes * 33 / 32
    assert near.data_bytes.bit_count() <= 6


@pytest.mark.parametrize(
    ("wishes", "near", "fault"),
    [
        ({"near": "east", "data": "12 parsecs"}, Near(CloudName("east")), 'data: "12 parsecs", column 4'),
        ({"near": "east", "data": 200}, Near(CloudName("east")), "data: how much the job reads, such as"),
        ({"near": "east", "data": "9" * 999}, Near(CloudName("east")), "data: how much the job reads, such as"),
        (
            {"near": "east", "data": "2000000TiB"},
            Near(CloudName("east")),
            "data: a size from 1 to 2^60 bytes is needed",
        ),
        (
            {"near": "east", "data": "0GiB"},
            Near(CloudName("east")),
            "data: a size from 1 to 2^60 bytes is needed",
        ),
        ({"near": "east", "data": "\x1b[2J"}, Near(CloudName("east")), 'data: "\\x1b[2J", column 1'),
        ({"near": 1}, None, "near: the name of a cloud"),
        ({"near": ""}, None, "near: the name of a cloud"),
        ({"near": ["east"]}, None, "near: the name of a cloud"),
        ({"near": "e" * 65}, None, "near: the name of a cloud"),
        ({"near": "\x1b[2J"}, None, "near: the name of a cloud"),
        ({"data": "1GiB"}, None, "data: there is no near"),
    ],
)
def test_data_that_cannot_be_read_does_not_refuse_the_job(
    wishes: dict[str, object], near: Near | None, fault: str
) -> None:
    job = with_wishes(**wishes)
    assert job.shape == Shape(1, 1, near=near)
    assert job.request.near_fault.startswith(fault)
    assert len(job.request.near_fault) <= 200
    assert job.request.near_fault.isprintable()


def a_slot_with(*within: object) -> dict[str, Any]:
    return a_jobspec(a_slot(**{"with": [{"type": "core", "count": 1}, *within]}))


@pytest.mark.parametrize(
    ("entry", "memory_bytes"),
    [
        ({"type": "memory", "count": 3, "unit": "GiB"}, 3 * 2**30),
        ({"type": "memory", "count": 3, "unit": "MB"}, 3 * 2**20),  # the larger of its two meanings
        ({"type": "socket", "count": 2, "with": [{"type": "memory", "count": 1, "unit": "KB"}]}, 2 * 2**10),
        ({"type": "memory", "count": 3}, 0),  # of what?
        ({"type": "memory", "count": 3, "unit": "pages"}, 0),
    ],
)
def test_memory_in_the_slot_is_read_where_its_unit_says_how_much(entry: object, memory_bytes: int) -> None:
    job = read_well(a_slot_with(entry))
    assert job.shape.memory_bytes_per_slot == memory_bytes
    assert "memory" in job.request.unheeded


def test_memory_beside_the_slot_belongs_to_no_slot() -> None:
    node = {"type": "node", "count": 1, "with": [a_slot(), {"type": "memory", "count": 3, "unit": "GiB"}]}
    assert read_well(a_jobspec(node)).shape.memory_bytes_per_slot == 0


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"memory": "4GB"}, 'node-manager.memory: "4GB", column 2: the unit must be one of'),
        ({"memory": 4}, "node-manager.memory: the size of each slot"),
        ({"one-zone": "yes"}, "node-manager.one-zone: 1 (the value that --setattr gives it) or 0 is needed"),
        ({"one_zone": 1}, "no such key 'one_zone'; the keys are"),
        (1, "attributes.system.node-manager: an object is needed"),
    ],
)
def test_a_misspelt_attribute_is_refused(said: object, why: str) -> None:
    assert why in refused(a_jobspec(**{"node-manager": said}))


def test_a_trimmed_jobspec_keeps_requests_to_the_manager() -> None:
    spec = a_jobspec(**{"node-manager": {"one-zone": 1}})
    assert read(trim_jobspec(spec)) == read(spec)


# --- resources --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "least"),
    [
        (3, 3),
        ({"min": 3}, 3),
        ({"min": 3, "max": 3}, 3),
        ({"min": 2, "max": 16, "operator": "*", "operand": 2}, 2),
        ("3", 3),
        ("3-5", 3),
        ("3+", 3),
        ("3+:2:+", 3),
        ("[3-5]", 3),
        ("2-8:2", 2),
        ("2-8:2:*", 2),
        ("2-8:2:^", 2),
        ("1,7-9", 1),
        ("[4,7]", 4),
    ],
)
def test_a_range_counts_by_its_least_value(count: object, least: int) -> None:
    assert read_shape(a_jobspec(a_slot(count=count))).slots == least


@pytest.mark.parametrize(
    "count",
    [
        0,
        -1,
        2**31,
        2.5,
        True,
        None,
        [],
        {},
        {"min": 0},
        {"min": True},
        {"min": "2"},
        {"min": 4, "max": 3},
        "",
        "0",
        "x",
        "5-3",
        "1-",
        "-3",
        "3++",
        "2-8:2:/",
        "1,",
        "99999999999",
        "[1",
        "1;2",
    ],
)
def test_a_count_that_is_none_is_refused_with_its_place(count: object) -> None:
    assert refused(a_jobspec(a_slot(count=count))).startswith("resources[0].count: a count from 1 to")


def test_a_count_that_is_missing_is_refused() -> None:
    assert "resources[0].with[0].count" in refused(a_jobspec(a_slot(**{"with": [{"type": "core"}]})))


def test_exclusive_on_a_slot_means_a_node_for_each() -> None:
    assert read_shape(a_jobspec(a_slot(count=3, exclusive=True))) == Shape(1, 1, nodes=3, exclusive=True)


def test_exclusive_nodes_need_no_core_to_be_named() -> None:
    node = {"type": "node", "count": 2, "exclusive": True, "with": [{"type": "slot", "count": 1, "label": "task"}]}
    assert read_shape(a_jobspec(node)) == Shape(1, 1, nodes=2, exclusive=True)


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ([{"type": "node", "count": 2}], "resources: a slot is needed, but there is none"),
        ([a_slot(**{"with": []})], "resources: a core is needed in the slot, but there is none"),
        ("all", "resources: a list is needed, not 'all'"),
        (None, "resources: a list is needed, not nothing"),
        ([7], "resources[0]: an object is needed, not 7"),
        ([{"count": 1}], "resources[0].type: text is needed, not nothing"),
        ([a_slot(**{"with": {"type": "core"}})], "resources[0].with: a list is needed, not an object of 1"),
    ],
)
def test_resources_that_cannot_be_read(resources: object, why: str) -> None:
    assert refused({**a_jobspec(), "resources": resources}) == why


def test_resources_multiply_within_bounds_only() -> None:
    rack = {"type": "rack", "count": COUNT_MAX, "with": [{"type": "node", "count": 2, "with": [a_slot()]}]}
    assert refused(a_jobspec(rack)) == f"resources: more than {COUNT_MAX} nodes"
    assert "in all" in refused(a_jobspec({"type": "row", "count": COUNT_MAX, "with": [{**rack, "count": 2}]}))


def test_resources_may_not_nest_without_end() -> None:
    nested = a_slot()
    for _ in range(5000):
        nested = {"type": "box", "count": 1, "with": [nested]}
    assert "nest deeper than" in refused(a_jobspec(nested))


# --- constraints ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("constraints", "constraint"),
    [
        (None, ANYWHERE),
        ({}, ANYWHERE),
        ({"properties": []}, ANYWHERE),
        ({"and": []}, ANYWHERE),
        ({"or": []}, AnyOf(())),
        ({"not": []}, Not(ANYWHERE)),
        ({"hostlist": []}, OnHosts(())),
        ({"ranks": []}, OnRanks(())),
        ({"ranks": ["1", "3-4"]}, OnRanks(("1", "3-4"))),
        ({"hostlist": ["c[1-2]", "d"]}, OnHosts(("c[1-2]", "d"))),
        ({"and": [{"properties": ["a"]}, {}]}, All((A, ANYWHERE))),
        ({"not": [{"properties": ["a"]}, {"properties": ["b"]}]}, Not(All((A, B)))),
    ],
)
def test_constraints_by_the_letter(constraints: object, constraint: Constraint) -> None:
    assert read_shape(a_jobspec(constraints=constraints)).constraint == constraint


@pytest.mark.parametrize(
    ("constraints", "why"),
    [
        ([], "constraints: an object is needed, not a list of 0"),
        ({"properties": ["a"], "ranks": ["1"]}, "constraints: one operator is needed, not 2"),
        ({"properties": "a"}, "constraints.properties: a list is needed, not 'a'"),
        ({"properties": [1]}, "constraints.properties: text is needed, not 1"),
        ({"and": [{"or": 5}]}, "constraints.and[0].or: a list is needed, not 5"),
        ({"memory": ["4G"]}, "constraints.memory: no such operator: use properties, hostlist, ranks, and, or, not"),
        ({"ranks": ["5-2"]}, "constraints.ranks: "),
        ({"hostlist": ["a[1"]}, "constraints.hostlist: "),
    ],
)
def test_constraints_that_cannot_be_read(constraints: object, why: str) -> None:
    assert refused(a_jobspec(constraints=constraints)).startswith(f"attributes.system.{why}")


def _and_around(constraint: dict[str, Any], levels: int) -> dict[str, Any]:
    return constraint if levels == 0 else {"and": [_and_around(constraint, levels - 1)]}


@pytest.mark.parametrize(
    ("constraints", "why"),
    [
        ({"properties": [f"p{n}" for n in range(TERMS_MAX)]}, "more than 256 terms"),
        ({"or": [{"properties": ["p"]}] * TERMS_MAX}, "more than 256 terms"),
        ({"hostlist": [",".join(f"r{n}[1-2]" for n in range(TERMS_MAX))]}, "more than 256 terms"),
        ({"ranks": ["1"] * TERMS_MAX}, "more than 256 terms"),
        ({"hostlist": ["h" * (CHARACTERS_MAX + 1)]}, "more than 65536 characters"),
        (_and_around({"properties": ["p"]}, DEPTH_MAX + 1), "nest deeper than 16"),
    ],
)
def test_a_constraint_has_only_so_many_terms_levels_and_characters(constraints: object, why: str) -> None:
    assert why in refused(a_jobspec(constraints=constraints))


def test_a_constraint_at_each_limit_is_read() -> None:
    for constraints in (
        {"properties": [f"p{n}" for n in range(TERMS_MAX - 1)]},
        {"hostlist": ["h" * CHARACTERS_MAX]},
        _and_around({"properties": ["p"]}, DEPTH_MAX),
    ):
        assert read_shape(a_jobspec(constraints=constraints)).constraint != ANYWHERE


def test_ranges_of_ranks_and_hosts_stay_text() -> None:
    shape = read_shape(a_jobspec(constraints={"ranks": ["0-999999999"]}))
    assert shape.constraint == OnRanks(("0-999999999",))
    shape = read_shape(a_jobspec(constraints={"hostlist": ["c[0-999999999]"]}))
    assert shape.constraint == OnHosts(("c[0-999999999]",))


def test_a_jobspec_that_is_too_large_is_dropped() -> None:
    jobspec = a_jobspec(constraints={"hostlist": [f"host{n}" for n in range(20_000)]})
    kept = trim_jobspec(jobspec)
    assert isinstance(kept, DroppedJobspec)
    assert "take more than 256 KiB" in refused(kept)


# --- attributes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duration", ["1h", None, True, -1, float("nan"), float("inf"), 10**400, []])
def test_a_duration_is_seconds(duration: object) -> None:
    assert refused(a_jobspec(duration=duration)).startswith("attributes.system.duration: ")


def test_a_duration_may_lack_only_outside_of_version_1() -> None:
    lacking = a_jobspec()
    del lacking["attributes"]["system"]["duration"]
    assert "attributes.system.duration" in refused(lacking)
    assert read_well({**lacking, "version": 9999}).duration_s == 0.0
    assert read_well({"version": 9999, "resources": [a_slot()]}).duration_s == 0.0


def test_other_attributes_that_cannot_be_read() -> None:
    assert refused(a_jobspec(queue=5)) == "attributes.system.queue: text is needed, not 5"
    assert refused({**a_jobspec(), "attributes": []}) == "attributes: an object is needed, not a list of 0"
    assert refused(None) == "jobspec: an object is needed, not nothing"


def test_the_fault_of_an_unreadable_job_is_short() -> None:
    assert len(refused(a_jobspec(constraints={"hostlist": ["x" * 100_000 + "["]}))) <= WHY_MAX


# --- the whole --------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    st.sampled_from(["version", "resources", "attributes", "system", "duration", "queue", "constraints"])
    | st.sampled_from(["type", "count", "exclusive", "with", "min", "max", "node", "slot", "core", "gpu", "memory"])
    | st.sampled_from(["properties", "hostlist", "ranks", "and", "or", "not"])
)
SPEC_JSON = st.recursive(
    KEYS | JSON | st.sampled_from(["node", "slot", "core", "2-8", "c[1-3]", "^a"]) | st.integers(-1, 3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(JSON | SPEC_JSON | st.builds(a_jobspec, SPEC_JSON, constraints=SPEC_JSON, queue=JSON))
def test_reading_never_raises(jobspec: object) -> None:
    job = read(jobspec)
    assert isinstance(job, UnreadableJob) or (hash(job.shape) is not None and job.shape.slots >= 1)


@given(SPEC_JSON | st.builds(a_jobspec, SPEC_JSON, constraints=SPEC_JSON, queue=JSON))
def test_trimming_changes_nothing_that_is_read(jobspec: object) -> None:
    assert read(trim_jobspec(jobspec)) == read(jobspec)


def test_trimming_drops_the_large_parts() -> None:
    assert "files" in FORMS["batch"]["jobspec"]["attributes"]["system"]
    kept = trim_jobspec(FORMS["batch"]["jobspec"])
    assert kept == {
        "version": 1,
        "resources": FORMS["batch"]["jobspec"]["resources"],
        "attributes": {"system": {"duration": 0}},
    }


# --- updates ----------------------------------------------------------------------------------------------


def test_an_update_replaces_values_by_path_and_leaves_the_old_jobspec_alone() -> None:
    before = a_jobspec(queue="batch", duration=60)
    after = with_updates(
        before, {"attributes.system.duration": 90.0, "attributes.system.constraints.properties": ["gpu"]}
    )
    assert read_well(before) == read_well(a_jobspec(queue="batch", duration=60))
    assert read_well(after) == read_well(a_jobspec(queue="batch", duration=90, constraints={"properties": ["gpu"]}))
    assert read_shape(with_updates(after, {"resources": [a_slot(count=5)]})).slots == 5


@pytest.mark.parametrize(
    "path", ["", ".", "attributes.", ".system", "a..b", "resources.0.count", "x." * 5000 + "y"]
)
def test_an_update_with_a_path_that_leads_nowhere_raises(path: str) -> None:
    with pytest.raises(ValueError, match="updates"):
        with_updates(a_jobspec(), {path: 1})
