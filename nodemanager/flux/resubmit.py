"""A job's jobspec, made into one that runs it once more.

What the KVS keeps as ``jobspec`` lacks the environment, so the signed one (``J``) is read, which is
``HEADER.PAYLOAD.SIGNATURE`` (RFC 15), the payload being the jobspec in Base64.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from nodemanager.flux.parse.jobspec import OUR_ATTRIBUTES, REQUEUED_FROM
from nodemanager.flux.parse.json_fields import object_at


def requeue_jobspec(signed: str, old: str) -> dict[str, Any]:
    """The jobspec that runs the job once more if ``old`` (its id) does not end well. Raises ``ValueError``."""
    jobspec = _unwrapped(signed)
    attributes = dict(object_at(jobspec.get("attributes", {}), "attributes"))
    system = dict(object_at(attributes.get("system", {}), "attributes.system"))
    wish = dict(object_at(system.get(OUR_ATTRIBUTES, {}), f"attributes.system.{OUR_ATTRIBUTES}"))
    # In place of its own: it runs, so what it waited for is over.
    system["dependencies"] = [{"scheme": "afternotok", "value": old}]
    system[OUR_ATTRIBUTES] = {**wish, REQUEUED_FROM: old}
    return {**jobspec, "attributes": {**attributes, "system": system}}


def _unwrapped(signed: str) -> dict[str, Any]:
    parts = signed.split(".")
    if len(parts) < 3:
        raise ValueError("HEADER.PAYLOAD.SIGNATURE is needed")
    payload = parts[1]
    try:
        text = base64.b64decode(payload + "=" * (-len(payload) % 4))
        return dict(object_at(json.loads(text), "jobspec"))
    except (binascii.Error, UnicodeDecodeError) as fault:
        raise ValueError(f"its payload is no Base64: {fault}") from fault
