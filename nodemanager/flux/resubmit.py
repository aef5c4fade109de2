"""Turn a job's jobspec into one that runs the job again.

The KVS key ``jobspec`` lacks the environment, so the signed jobspec (``J``) is used. It has the form
``HEADER.PAYLOAD.SIGNATURE`` (RFC 15); the payload is the jobspec in Base64.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from nodemanager.core.untrusted import read_json
from nodemanager.delegation.jobs import HOLD_UNTIL_AT
from nodemanager.delegation.jobspec import OUR_ATTRIBUTES
from nodemanager.flux.parse.jobspec import REQUEUED_FROM
from nodemanager.flux.parse.json_fields import object_at, text_at

_HELD = {"scheme": "begin-time", "value": f"{HOLD_UNTIL_AT:.0f}"}


def requeue_jobspec(signed: str, old: str) -> dict[str, Any]:
    """Make a jobspec that runs the job again. It is held, and never begins before ``old``, the job's id, has ended.

    Raises ``ValueError``.
    """
    jobspec = unwrap_jobspec(signed)
    attributes = dict(object_at(jobspec.get("attributes", {}), "attributes"))
    system = dict(object_at(attributes.get("system", {}), "attributes.system"))
    wish = dict(object_at(system.get(OUR_ATTRIBUTES, {}), f"attributes.system.{OUR_ATTRIBUTES}"))
    # These replace the job's own dependencies: the job runs, so they are fulfilled. Not ``afternotok``: with it
    # Flux fails the copy if the original ends well, and nothing can prevent that in time.
    system["dependencies"] = [_HELD, {"scheme": "afterany", "value": old}]
    system[OUR_ATTRIBUTES] = {**wish, REQUEUED_FROM: old}
    return {**jobspec, "attributes": {**attributes, "system": system}}


def unwrap_jobspec(signed: object) -> dict[str, Any]:
    """Return the jobspec as its user submitted it. Raises ``ValueError``."""
    parts = text_at(signed, "J").split(".")
    if len(parts) < 3:
        raise ValueError("it does not have the form HEADER.PAYLOAD.SIGNATURE")
    payload = parts[1]
    try:
        text = base64.b64decode(payload + "=" * (-len(payload) % 4))
        return dict(object_at(read_json(text), "jobspec"))
    except (binascii.Error, UnicodeDecodeError) as fault:
        raise ValueError(f"its payload is not valid Base64: {fault}") from fault
