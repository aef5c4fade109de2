"""A value with some fields otherwise: ``dataclasses.replace``, in a small part of the time.

The fleet's values are frozen, and each fact makes a few of them anew, of up to sixty fields. ``dataclasses.replace``
looks up every field of a class each time, and the constructor of a frozen class sets each by a call. A class without
slots keeps its fields in a dict, which is copied at once: so those that are made anew most often have none.
"""

from __future__ import annotations

import dataclasses
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

__all__ = ["replace"]

if TYPE_CHECKING:
    from dataclasses import replace  # so that names and types of the changes are checked
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """The value with these fields otherwise. Raises ``TypeError`` where it has no such field."""
        of = type(value)
        if not changes.keys() <= _fields_copied(of):
            return dataclasses.replace(value, **changes)
        made = object.__new__(of)
        object.__setattr__(made, "__dict__", value.__dict__ | changes)
        return made


@cache
def _fields_copied(of: type[Any]) -> frozenset[str]:
    """The fields of a class whose dict has them and nothing else; none of one that is more than that."""
    keeps_more = hasattr(of, "__post_init__") or any(
        isinstance(it, cached_property) for base in of.__mro__ for it in vars(base).values()
    )
    plain = dataclasses.is_dataclass(of) and of.__dictoffset__ != 0 and not keeps_more
    return frozenset(it.name for it in dataclasses.fields(of)) if plain else frozenset()
