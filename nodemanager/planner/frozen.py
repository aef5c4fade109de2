"""Fast helpers for frozen dataclasses: ``replace`` some fields, and ``lazy_property`` to compute a value once.

The planner's values are frozen, and each fact replaces a few of them, with up to sixty fields each.
``dataclasses.replace`` looks up every field each time, and the constructor of a frozen class sets each by a call. A
class without slots keeps its fields in a dict, which is copied at once. So the classes that are replaced most often
have no slots.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

__all__ = ["lazy_property", "replace"]

if TYPE_CHECKING:
    # Lets type checkers check names and types.
    from dataclasses import replace
    from functools import cached_property as lazy_property
else:

    class lazy_property:  # noqa: N801 - used like ``property``
        """A property that is computed on first access and kept with the value.

        Use it only for results of the value's own fields: these never change, so it never grows stale. It is
        ``functools.cached_property`` without the lock that Python 3.11 takes.
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
        """A copy of the value with these fields changed. Raises ``TypeError`` if it has no such field."""
        of = type(value)
        fields, lazy = _copyable_fields(of)
        if not fields:
            return dataclasses.replace(value, **changes)
        state = value.__dict__ | changes
        if len(state) != fields:
            for name in lazy:
                state.pop(name, None)  # computed from the old fields
            if len(state) != fields:
                return dataclasses.replace(value, **changes)  # raises, and names the unknown field
        made = _new(of)
        _set(made, "__dict__", state)
        return made


_new, _set = object.__new__, object.__setattr__


@cache
def _copyable_fields(cls: type[Any]) -> tuple[int, tuple[str, ...]]:
    """The number of fields if instances keep them all in their dict, else 0; and the names of lazy properties."""
    names = {name: it for base in cls.__mro__ for name, it in vars(base).items()}
    keeps_more = "__post_init__" in names or any(isinstance(it, cached_property) for it in names.values())
    if keeps_more or cls.__dictoffset__ == 0:
        return 0, ()
    lazy = (name for name, it in names.items() if isinstance(it, lazy_property))
    return len(dataclasses.fields(cls)), tuple(lazy)
