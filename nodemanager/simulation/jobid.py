"""Job ids as Flux shows them: F58 (RFC 19), base 58 with the letter f in front."""

from __future__ import annotations

from nodemanager.model import JobId

_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_PREFIXES = ("ƒ", "f")


def format_f58(job_id: JobId) -> str:
    """The id in its ASCII form: ``fLqTPgb``."""
    text, rest = "", int(job_id)
    while rest or not text:
        rest, digit = divmod(rest, len(_DIGITS))
        text = _DIGITS[digit] + text
    return f"f{text}"


def parse_f58(text: str) -> JobId:
    """Read an id in either form. Raises ValueError."""
    digits = text[1:]
    if not text.startswith(_PREFIXES) or not digits or any(digit not in _DIGITS for digit in digits):
        raise ValueError(f"{text!r} is no job id: F58 is needed, such as fLqTPgb")
    number = 0
    for digit in digits:
        number = number * len(_DIGITS) + _DIGITS.index(digit)
    return JobId(number)
