"""The certificates that prove an EC2 instance's identity, one for each region."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_CERTIFICATE = re.compile(
    r"^# (\S+)\n(-----BEGIN CERTIFICATE-----\n.*?-----END CERTIFICATE-----\n)", re.DOTALL | re.MULTILINE
)


@cache
def certificates() -> dict[str, str]:
    """Return the certificate of each region as PEM."""
    text = Path(__file__).with_suffix(".pem").read_text(encoding="ascii")
    return dict(_CERTIFICATE.findall(text))
