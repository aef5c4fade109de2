"""Read constraints (RFC 31) from a jobspec's JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nodemanager.core.jobs import ANYWHERE, All, AnyOf, Constraint, HasProperty, Not, OnHosts, OnRanks
from nodemanager.core.notation import expand_hostlist, parse_idset
from nodemanager.flux.parse.json_fields import list_at, object_at, shorten, text_at

DEPTH_MAX = 100
# One constraint may name this many hosts and ranks: a user's jobspec must not use up the manager's memory.
PLACES_MAX = 1_000_000

_Place = TypeVar("_Place", str, int)


def read_constraint(value: object, where: str) -> Constraint:
    """Read the constraint at ``where``. None and an object without an operator hold everywhere.

    As in flux-core's matcher, ``not`` of several parts holds where at least one part does not hold, and ``not`` of
    no parts holds nowhere. Raises ``ValueError`` with the place.
    """
    return ANYWHERE if value is None else _Reader().read(value, where, 0)


class _Reader:
    """Reads one constraint and counts the hosts and ranks that it names."""

    def __init__(self) -> None:
        self._places_left = PLACES_MAX

    def read(self, value: object, where: str, depth: int) -> Constraint:
        operators = object_at(value, where)
        if depth > DEPTH_MAX:
            raise ValueError(f"{shorten(where)}: constraints nest deeper than {DEPTH_MAX} levels")
        if not operators:
            return ANYWHERE
        if len(operators) > 1:
            raise ValueError(f'{where}: one operator is needed, not {len(operators)}: join them with "and"')
        [(operator, values)] = operators.items()
        place = f"{where}.{shorten(operator)}"
        if operator in {"and", "or", "not"}:
            return self._read_parts(operator, list_at(values, place), place, depth)
        return self._read_term(operator, [text_at(item, place) for item in list_at(values, place)], place)

    def _read_parts(self, operator: str, values: list[object], place: str, depth: int) -> Constraint:
        parts = tuple(self.read(part, f"{place}[{index}]", depth + 1) for index, part in enumerate(values))
        if operator == "or":
            return AnyOf(parts)
        together = parts[0] if len(parts) == 1 else All(parts)
        return Not(together) if operator == "not" else together

    def _read_term(self, operator: str, values: list[str], place: str) -> Constraint:
        match operator:
            case "properties":
                wanted = tuple(_property(name) for name in values)
                return wanted[0] if len(wanted) == 1 else All(wanted)
            case "hostlist":
                return OnHosts(self._places(expand_hostlist, values, place))
            case "ranks":
                return OnRanks(self._places(parse_idset, values, place))
            case _:
                raise ValueError(f"{place}: no such operator: use properties, hostlist, ranks, and, or, not")

    def _places(
        self, expand: Callable[[str], tuple[_Place, ...]], texts: list[str], place: str
    ) -> frozenset[_Place]:
        found: set[_Place] = set()
        for text in texts:
            try:
                places = expand(text)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
            self._places_left -= len(places)
            if self._places_left < 0:
                raise ValueError(f"{place}: more than {PLACES_MAX} hosts and ranks in one constraint")
            found.update(places)
        return frozenset(found)


def _property(name: str) -> Constraint:
    return Not(HasProperty(name[1:])) if name.startswith("^") else HasProperty(name)
