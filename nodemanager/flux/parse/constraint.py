"""Read constraints (RFC 31) from a jobspec's JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nodemanager.core.jobs import ANYWHERE, All, AnyOf, Constraint, HasProperty, Not, OnHosts, OnRanks
from nodemanager.core.notation import parse_hostlist, parse_idset_ranges
from nodemanager.flux.parse.json_fields import list_at, object_at, shorten, text_at

# A constraint is matched with every slot, so its size is limited. Every operator and every listed value is a term;
# a hostlist with brackets, such as node[1-5000], is one.
TERMS_MAX = 256
DEPTH_MAX = 16
CHARACTERS_MAX = 65_536  # of all values together

_Parsed = TypeVar("_Parsed")


def read_constraint(value: object, where: str) -> Constraint:
    """Read the constraint at ``where``. None and an object without an operator hold everywhere.

    As in flux-core's matcher, ``not`` of several parts holds where at least one part does not hold, and ``not`` of
    no parts holds nowhere. Raises ``ValueError`` with the place.
    """
    return ANYWHERE if value is None else _Reader().read(value, where, 0)


class _Reader:
    """Reads one constraint and counts its terms and characters."""

    def __init__(self) -> None:
        self._terms_left = TERMS_MAX
        self._characters_left = CHARACTERS_MAX

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
        self._count(1, 0, place)
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
        self._count(len(values), sum(map(len, values)), place)
        match operator:
            case "properties":
                wanted = tuple(_property(name) for name in values)
                return wanted[0] if len(wanted) == 1 else All(wanted)
            case "hostlist":
                for text in values:
                    groups = _checked(parse_hostlist, text, place)
                    self._count(sum(bool(group.ranges) for group in groups), 0, place)
                return OnHosts(tuple(values))
            case "ranks":
                for text in values:
                    _checked(parse_idset_ranges, text, place)
                return OnRanks(tuple(values))
            case _:
                raise ValueError(f"{place}: no such operator: use properties, hostlist, ranks, and, or, not")

    def _count(self, terms: int, characters: int, place: str) -> None:
        self._terms_left -= terms
        self._characters_left -= characters
        if self._terms_left < 0:
            raise ValueError(f"{shorten(place)}: more than {TERMS_MAX} terms in one constraint")
        if self._characters_left < 0:
            raise ValueError(f"{shorten(place)}: more than {CHARACTERS_MAX} characters in one constraint")


def _checked(parse: Callable[[str], list[_Parsed]], text: str, place: str) -> list[_Parsed]:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{shorten(place)}: {error}") from None


def _property(name: str) -> Constraint:
    return Not(HasProperty(name[1:])) if name.startswith("^") else HasProperty(name)
