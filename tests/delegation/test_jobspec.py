"""The jobspec of a copy, its marker, and what a job needs."""

from __future__ import annotations

import pytest

from nodemanager.core.jobs import JobId
from nodemanager.delegation.choose import Needs, name_of_uri
from nodemanager.delegation.jobspec import (
    Marker,
    copy_jobspec,
    fit_question,
    read_marker,
    read_needs,
    read_target,
    without_queue,
)

MARKER = Marker("cafe", JobId(7), 1795356438.600146)
JOBSPEC = {
    "version": 1,
    "resources": [
        {
            "type": "node",
            "count": 2,
            "with": [
                {
                    "type": "slot",
                    "count": 3,
                    "label": "task",
                    "with": [{"type": "core", "count": 2}, {"type": "gpu", "count": 1}],
                }
            ],
        }
    ],
    "tasks": [{"command": ["app", "--secret"], "slot": "task", "count": {"per_slot": 1}}],
    "attributes": {
        "system": {
            "duration": 60,
            "queue": "gpu",
            "environment": {"A": "1"},
            "dependencies": [{"scheme": "afterok", "value": "5"}, {"scheme": "delegate", "value": "b"}],
            "node-manager": {"patience": 600, "near": "east", "data": "200GiB"},
        },
        "user": {"mine": 1},
    },
}


def test_the_copy_is_the_user_s_job_with_a_marker_and_without_dependencies() -> None:
    copy = copy_jobspec(JOBSPEC, MARKER)
    system = copy["attributes"]["system"]
    assert "dependencies" not in system
    assert system["environment"] == {"A": "1"}
    assert system["node-manager"] == {"patience": 600, "delegated-from": MARKER.encode()}, "east is our cloud"
    assert copy["attributes"]["user"] == {"mine": 1}
    assert (copy["resources"], copy["tasks"]) == (JOBSPEC["resources"], JOBSPEC["tasks"])
    assert read_marker(copy) == MARKER
    assert not read_target(copy), "a copy is not delegated once more"
    assert "queue" not in without_queue(copy)["attributes"]["system"]


def test_the_original_stays_as_it_was() -> None:
    before = repr(JOBSPEC)
    copy_jobspec(JOBSPEC, MARKER)
    assert repr(JOBSPEC) == before


@pytest.mark.parametrize("text", ["", "cafe", "cafe/7", "cafe/x/1.0", "cafe/7/x", 5, None])
def test_a_marker_that_is_not_ours_is_none(text: object) -> None:
    assert read_marker({"attributes": {"system": {"node-manager": {"delegated-from": text}}}}) is None
    assert read_marker({"attributes": text}) is None


def test_equal_jobs_ask_the_same_question() -> None:
    question = fit_question(copy_jobspec(JOBSPEC, MARKER))
    other = fit_question(copy_jobspec(JOBSPEC, Marker("cafe", JobId(8), 2.0)))
    assert question == other
    assert "--secret" not in str(question)


def test_what_a_job_needs() -> None:
    assert read_needs(JOBSPEC) == Needs(cores=12, nodes=2, gpus=6, duration_s=60, queue="gpu", patience_s=600)


@pytest.mark.parametrize("count", [{"min": 2, "max": 8}, "2-8", "2+"])
def test_a_range_counts_as_its_lowest_value(count: object) -> None:
    assert read_needs({"resources": [{"type": "core", "count": count}]}).cores == 2


@pytest.mark.parametrize("resources", [None, [5], [{"type": "core", "count": "many"}]])
def test_a_jobspec_that_cannot_be_read(resources: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any words
        read_needs({"resources": resources})


def test_a_uri_gets_a_name_that_is_a_host_s() -> None:
    assert name_of_uri("ssh://ada@b.example:22/run/flux/local").startswith("b.example-")
    assert name_of_uri("local:///run/b") != name_of_uri("local:///run/c")
