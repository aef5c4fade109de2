"""A value with some fields otherwise: ``dataclasses.replace``, in a fifth of the time.

The fleet's values are frozen, and each fact makes a few of them anew. ``dataclasses.replace`` looks up every field
of a class each time; here its fields are looked up once and read at once.
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

__all__ = ["replace"]

if TYPE_CHECKING:
    from dataclasses import replace  # so that names and types of the changes are checked
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """The value with these fields otherwise."""
        of = type(value)
        read, places = _fields_of(of)
        now = list(read(value))
        for name, new in changes.items():
            now[places[name]] = new
        return of(*now)


@cache
def _fields_of(of: type[Any]) -> tuple[attrgetter[Any], dict[str, int]]:
    names = [it.name for it in fields(of) if it.init]
    return attrgetter(*names), {name: place for place, name in enumerate(names)}
