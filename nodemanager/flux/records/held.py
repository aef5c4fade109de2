"""The record of the jobs that the manager holds, in the instance's KVS: one JSON value for each job."""

from __future__ import annotations

import json

from nodemanager.core.jobs import JobId
from nodemanager.core.records import HeldJob
from nodemanager.core.untrusted import read_json
from nodemanager.flux.parse.json_fields import object_at, whole_at

FOLDER = "node-manager.held-jobs"


def key_of(job: JobId) -> str:
    """The KVS key of a job's record."""
    return f"{FOLDER}.{job}"


def job_of(name: str) -> JobId:
    """The job whose record has this name in the folder. Raises ``ValueError``."""
    return JobId(int(name))


def encode(held: HeldJob) -> str:
    """Write the record."""
    return json.dumps({"urgency": held.urgency, "priority": held.priority}, sort_keys=True)


def decode(text: str) -> HeldJob:
    """Read the record. Raises ``ValueError``."""
    fields = object_at(read_json(text), "record")
    return HeldJob(
        whole_at(fields.get("urgency"), "record.urgency"), whole_at(fields.get("priority"), "record.priority")
    )
