"""Reads how long a service asks its callers to wait."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime

RETRY_AFTER_MAX_S = 300.0


def parse_retry_after(header: str, now_at: float) -> float:
    """Return the seconds that a Retry-After header asks for (RFC 9110, 10.2.3), 300 at most; 0 if unreadable."""
    text = header.strip()
    if re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", text):
        wait_s = float(text)
    else:
        try:
            wait_s = parsedate_to_datetime(text).timestamp() - now_at
        except (ValueError, OverflowError):
            return 0.0
    return min(max(0.0, wait_s), RETRY_AFTER_MAX_S)
