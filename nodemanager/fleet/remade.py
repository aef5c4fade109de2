"""A value with some fields otherwise: ``dataclasses.replace``, in a small part of the time.

The fleet's values are frozen, and each fact makes a few of them anew. ``dataclasses.replace`` looks up every field
of a class each time, and the constructor of a frozen class sets each by a call. Here the fields are looked up once
and their slots copied, which is the same for a class that does nothing more when it is made.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from functools import cache
from itertools import repeat
from operator import attrgetter, call
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

__all__ = ["replace"]

if TYPE_CHECKING:
    from dataclasses import replace  # so that names and types of the changes are checked
else:

    def replace(value: Any, /, **changes: Any) -> Any:
        """The value with these fields otherwise. Raises ``TypeError`` where it has no such field."""
        of = type(value)
        read, setters = _slots_of(of)
        if not changes.keys() <= setters.keys():
            return dataclasses.replace(value, **changes)
        made = object.__new__(of)
        deque(map(call, setters.values(), repeat(made), read(value)), maxlen=0)
        for name, new in changes.items():
            setters[name](made, new)
        return made


@cache
def _slots_of(of: type[Any]) -> tuple[attrgetter[Any], dict[str, Any]]:
    """What reads all fields of a class, and what sets each; nothing sets one of a class that is more than slots."""
    names = [it.name for it in dataclasses.fields(of)]
    slots = {name: slot for name in names if isinstance(slot := getattr(of, name, None), MemberDescriptorType)}
    plain = len(slots) == len(names) > 1 and not hasattr(of, "__post_init__")
    return attrgetter(*names), {name: slot.__set__ for name, slot in slots.items()} if plain else {}
