"""Check JSON values from outside: each function reads one kind of value.

Every function takes the value and its place, such as ``resources[0].count``. A value of another kind raises
``ValueError`` with the place, the kind that is needed, and the value found.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

_SHOWN_MAX = 60  # characters of a value, or of a place, in a message
SECONDS_MAX = 1e15  # thirty million years: anything longer is an error


def object_at(value: object, where: str) -> Mapping[str, Any]:
    """Read an object."""
    if not isinstance(value, Mapping):
        raise wrong_value(where, "an object", value)
    return value


def list_at(value: object, where: str) -> list[Any]:
    """Read a list."""
    if not isinstance(value, list):
        raise wrong_value(where, "a list", value)
    return value


def text_at(value: object, where: str) -> str:
    """Read a text."""
    if not isinstance(value, str):
        raise wrong_value(where, "text", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair: no file, database or answer could have it
            raise wrong_value(where, "Unicode text", value) from None
    return value


def whole_at(value: object, where: str) -> int:
    """Read a whole number. JSON's true and false are refused, although Python treats them as 1 and 0."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_value(where, "a whole number", value)
    return value


def seconds_at(value: object, where: str) -> float:
    """Read seconds: a duration, or a moment since the epoch."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_value(where, "a number of seconds", value)
    # Compare before converting to float, because an integer may be too large. NaN fails the comparison too.
    if not 0 <= value <= SECONDS_MAX:
        raise wrong_value(where, f"from 0 to {SECONDS_MAX:g} seconds", value)
    return float(value)


def amount_at(value: object, where: str) -> Decimal:
    """Read an amount of money: a decimal number as text, so that no digit is lost."""
    try:
        amount = Decimal(text_at(value, where))
    except InvalidOperation:
        raise wrong_value(where, "a decimal number", value) from None
    if not (amount.is_finite() and amount >= 0):
        raise wrong_value(where, "an amount of 0 or more", value)
    return amount


def flag_at(value: object, where: str) -> bool:
    """Return a JSON boolean. Raises ``ValueError`` if it is none."""
    if not isinstance(value, bool):
        raise wrong_value(where, "true or false", value)
    return value


def wrong_value(where: str, needed: str, found: object) -> ValueError:
    """Make the error for a wrong value; the caller raises it."""
    return ValueError(f"{shorten(where)}: {needed} is needed, not {_describe(found)}")


def shorten(text: str) -> str:
    """Shorten a long text in its middle, because both ends of a place matter."""
    half = _SHOWN_MAX // 2
    return text if len(text) <= 2 * half else f"{text[:half]}...{text[-half:]}"


def _describe(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return f"an object of {len(value)}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return shorten(repr(value))
