"""Checks AWS's Signature Version 4 as its documentation describes it, without libcloud or botocore."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>[^,]+), SignedHeaders=(?P<headers>[^,]+), "
    r"Signature=(?P<signature>[0-9a-f]{64})"
)


def is_signed(method: str, headers: Mapping[str, str], body: bytes, secrets: Mapping[str, str]) -> bool:
    """Return whether one of the keys signed a request for "/" without a query. Header names are lower case."""
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if found is None or found["key"] not in secrets:
        return False
    names = found["headers"].split(";")
    if not {"host", "x-amz-date"} <= set(names):
        return False
    signed = "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in names)
    canonical = "\n".join([method, "/", "", signed, found["headers"], hashlib.sha256(body).hexdigest()])
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], found["scope"], digest])
    key = f"AWS4{secrets[found['key']]}".encode()
    for part in found["scope"].split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.compare_digest(hmac.new(key, text.encode(), "sha256").hexdigest(), found["signature"])
