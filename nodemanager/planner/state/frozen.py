"""A value with some fields otherwise, and what is worked out of a value once: both at little cost.

The fleet's values are frozen, and each fact makes a few of them anew, of up to sixty fields. For that
``dataclasses.replace`` looks up every field of a class each time, and the constructor of a frozen class sets each
by a call. A class without slots keeps its fields in a dict, which is copied at once: so those that are made anew
most often have none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

__all__ = ["replace", "worked_out"]

if TYPE_CHECKING:
    # So that names and types are checked.
    from dataclasses import replace
    from functools import cached_property as worked_out
else:

    class worked_out:  # noqa: N801 - it is used as ``property`` is
        """A property that is worked out where it is first asked for, and kept with the value.

        For what depends on the value's own fields and on nothing else: as these never change, it never grows stale.
        ``functools.cached_property``, without the lock that each of it takes in Python 3.11.
        """

        def __init__(self, work: Callable[[Any], Any]) -> None:
            self._work = work
            self.__doc__ = work.__doc__

        def __set_name__(self, of: type[Any], name: str) -> None:
            self._name = name

        def __get__(self, value: Any, of: type[Any] | None = None) -> Any:
            if value is None:
                return self
            made = value.__dict__[self._name] = self._work(value)
            return made

    def replace(value: Any, /, **changes: Any) -> Any:
        """The value with these fields otherwise. Raises ``TypeError`` where it has no such field."""
        of = type(value)
        fields, worked = _copied(of)
        if not fields:
            return dataclasses.replace(value, **changes)
        state = value.__dict__.copy()
        state.update(changes)
        for name in worked:
            state.pop(name, None)  # that was of the other value
        if len(state) != fields:
            return dataclasses.replace(value, **changes)  # which says of which change there is no such field
        made = _new(of)
        _set(made, "__dict__", state)
        return made


_new, _set = object.__new__, object.__setattr__


@cache
def _copied(of: type[Any]) -> tuple[int, tuple[str, ...]]:
    """How many fields a class has whose dict holds them all, and what else that may hold; else 0."""
    names = {name: it for base in of.__mro__ for name, it in vars(base).items()}
    keeps_more = "__post_init__" in names or any(isinstance(it, cached_property) for it in names.values())
    if keeps_more or of.__dictoffset__ == 0:
        return 0, ()
    worked = (name for name, it in names.items() if isinstance(it, worked_out))
    return len(dataclasses.fields(of)), tuple(worked)
