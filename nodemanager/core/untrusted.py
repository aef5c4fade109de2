"""Read JSON and YAML that strangers write: users, guests, peers, providers, clients. No other module does.

Whatever the text is, a reader returns plain values or raises ``UnreadableText``, within bounds of size and depth:

- Values that nest deeper than ``DEPTH_MAX`` are refused. Python's reader recurses, and gives up at about 1,000
  levels; Flux accepts 2,048. :func:`read_message` cuts such a value out instead, so that the rest of its message is
  read.
- ``NaN``, ``Infinity``, numbers that a double cannot hold, and integers of more than 20 digits are refused. Flux's
  own reader (jansson) refuses them too.
- Halves of a surrogate pair are refused: no file, socket or database takes such a text.
- If a key occurs twice in an object, the last one counts, as for jansson: Flux and the manager see the same value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import yaml

DEPTH_MAX = 64
SIZE_MAX = 1 << 26  # bytes of a text, unless the reader is told otherwise
INTEGER_DIGITS_MAX = 20  # those of 2**64
_SHOWN_MAX = 40


class UnreadableText(ValueError):
    """A text from outside is no JSON or YAML, or exceeds a bound. The message says which."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a value that cannot be read. It is no object, list, text or number. ``why`` begins with a verb."""

    why: str

    def __repr__(self) -> str:
        return f"a value that {self.why}"


class TooDeep(Unreadable):
    """Stands in a message for a value that nests too deep."""


TOO_DEEP = TooDeep(f"nests deeper than {DEPTH_MAX} levels")


def read_json(text: str | bytes | bytearray, *, size_max: int = SIZE_MAX, any_number: bool = False) -> Any:
    """Read one JSON text. Raises ``UnreadableText``. Bytes are UTF-8.

    ``any_number``: also take NaN and infinite numbers, for a caller who names each value that is no measure.
    """
    whole, data = _as_both(text, size_max)
    if _nests_deeper(data):
        raise UnreadableText(f"the JSON nests deeper than {DEPTH_MAX} levels")
    return _parse(whole, data, float if any_number else _refuse_constant)


def read_message(text: str, *, size_max: int = SIZE_MAX) -> Any:
    """Read a message that carries the values of many people. Raises ``UnreadableText``.

    A message is an object of values, and of lists of records. A value that nests too deep is replaced by
    ``TOO_DEEP``; the rest of its record and of the message remains. So one user's value does not hide the others'.
    """
    whole, data = _as_both(text, size_max)
    if _nests_deeper(data):
        return _parse(_cut(whole), data, _constant_of_cut)
    return _parse(whole, data, _refuse_constant)


def read_object(text: str | bytes | bytearray, *, size_max: int = SIZE_MAX) -> Mapping[str, Any]:
    """Read a JSON text that must be an object. Raises ``UnreadableText``."""
    found = read_json(text, size_max=size_max)
    if not isinstance(found, dict):
        raise UnreadableText("a JSON object is needed")
    return found


def read_lines(text: str) -> list[str]:
    """Split a text with one JSON value a line, without the empty lines.

    Only a line feed ends a line. ``str.splitlines`` also splits at U+0085, U+2028 and others, which JSON allows in
    a string and which Flux does not escape.
    """
    return [line for line in text.split("\n") if line]


# --- numbers, text and size -------------------------------------------------------------------------------


def _as_both(text: str | bytes | bytearray, size_max: int) -> tuple[str, bytes | bytearray]:
    """Return the text, and as UTF-8."""
    if len(text) > size_max:
        raise UnreadableText(f"the text has more than {size_max} bytes")
    try:
        if isinstance(text, str):
            return text, text.encode()
        return text.decode(), text
    except UnicodeError as error:
        raise UnreadableText(f"the text is not UTF-8: {error.reason}") from error  # type: ignore[attr-defined]


def _parse(text: str, data: bytes | bytearray, on_constant: Callable[[str], Any]) -> Any:
    if b"\\u" in data and _HALF_PAIR.search(_ESCAPED_PAIR.sub("_", text)):
        raise UnreadableText("half of a surrogate pair is no text")
    try:
        checks_numbers = on_constant is not float and _may_have_large_numbers(data)
        return _decoder(on_constant, checks_numbers).decode(text)
    except UnreadableText:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableText(f"this is not JSON: {error}" if str(error) else "this is not JSON") from error


# Each takes whole escapes, so that the "u" of "\\u" (a backslash, then a u) begins none.
_ESCAPED_PAIR = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|[^u])", re.DOTALL)
_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")


_NUMBERS = bytes(
    ord("0") if byte in b"0123456789" else ord("e") if byte in b"eE" else ord(" ") for byte in range(256)
)


def _may_have_large_numbers(data: bytes | bytearray) -> bool:
    """Tell whether the numbers must be checked. A check of each would take half as long as reading the text."""
    shapes = data.translate(_NUMBERS, b"+")
    return b"e000" in shapes or b"0" * (INTEGER_DIGITS_MAX + 1) in shapes


@cache
def _decoder(on_constant: Callable[[str], Any], checks_numbers: bool) -> json.JSONDecoder:
    if checks_numbers:
        return json.JSONDecoder(parse_int=_integer, parse_float=_real, parse_constant=on_constant)
    return json.JSONDecoder(parse_constant=on_constant)


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > INTEGER_DIGITS_MAX:
        raise UnreadableText(f"an integer has more than {INTEGER_DIGITS_MAX} digits: {text[:_SHOWN_MAX]}...")
    return int(text)


def _real(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise UnreadableText(f"the number is too large: {text[:_SHOWN_MAX]}")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise UnreadableText(f"{name} is no JSON number")


# The text of a cut value. JSON has no such word, so no other value of a message can be mistaken for it.
_CUT = "-Infinity"


def _constant_of_cut(name: str) -> TooDeep:
    return TOO_DEEP if name == _CUT else _refuse_constant(name)


# --- depth ------------------------------------------------------------------------------------------------

_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_AS_PAIRS = bytes.maketrans(b"[]{}", b"()()")
_STRING = re.compile(rb'"[^"]*+"?')


def _nests_deeper(data: bytes | bytearray) -> bool:
    """Tell whether values nest deeper than ``DEPTH_MAX``, by a few passes over the bytes in C."""
    if data.count(b"[") + data.count(b"{") <= DEPTH_MAX:
        return False
    if b'\\"' in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes side by side change nothing about what else is inside a string, so strings without brackets vanish.
    brackets = data.translate(_AS_PAIRS, _NOT_STRUCTURE).replace(b'""', b"")
    if b'"' in brackets:
        brackets = _STRING.sub(b"", brackets)
    depth = 0  # of what was taken off, from the innermost pairs outwards
    while b"()" in brackets and depth <= DEPTH_MAX:
        brackets = brackets.replace(b"()", b"")
        depth += 1
    return depth + len(brackets) > DEPTH_MAX


_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def _cut(text: str) -> str:
    """Replace each value of the message, or of one of its records, that nests too deep."""
    pieces: list[str] = []
    copied = began = depth = deepest = 0
    frame = 0  # how many of the open brackets are the message's own: its object, a list in it, a record in the list
    for token in _TOKEN.finditer(text):
        bracket = text[token.start()]
        if bracket in "[{":
            depth += 1
            if frame == depth - 1:
                if depth == 1 or (depth == 2 and bracket == "[") or (depth == 3 and bracket == "{"):
                    frame = depth
                else:
                    began, deepest = token.start(), depth
            deepest = max(deepest, depth)
        elif bracket in "]}":
            if depth == frame + 1 and deepest > DEPTH_MAX:
                pieces += [text[copied:began], _CUT]
                copied = token.end()
            depth -= 1
            frame = min(frame, depth)
    return "".join([*pieces, text[copied:]])


# --- YAML -------------------------------------------------------------------------------------------------

YAML_BYTES_MAX = 1 << 22
VALUES_MAX = 100_000  # aliases of aliases could make a small file very large


def read_yaml(text: str) -> Any:
    """Read one YAML document into plain values. Raises ``UnreadableText``."""
    import yaml  # noqa: PLC0415 - only some verbs read YAML

    try:
        loader = yaml_loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, *YAML_FAULTS) as error:
        raise UnreadableText(f"this is not YAML: {error}") from error


# What PyYAML's constructors raise for a value that its tag does not allow, such as "!!bool perhaps".
YAML_FAULTS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError)


def yaml_loader(text: str) -> yaml.SafeLoader:
    """Make PyYAML's safe loader with our bounds. It and its methods raise ``yaml.YAMLError``."""
    import yaml  # noqa: PLC0415

    if len(text) > YAML_BYTES_MAX:
        raise yaml.error.MarkedYAMLError(problem=f"the text has more than {YAML_BYTES_MAX} characters")
    return _loader_class()(text)


@cache
def _loader_class() -> type[yaml.SafeLoader]:  # noqa: C901 - many methods, none of them long
    import yaml  # noqa: PLC0415

    class BoundedLoader(yaml.SafeLoader):  # type: ignore[misc]
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self._depth = 0
            self._merged = 0
            self._heights: dict[yaml.Node, int] = {}  # the levels in each value, also through aliases

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            event = self.peek_event()
            self._check_depth(0, event.start_mark)
            self._depth += 1
            try:
                node = super().compose_node(parent, index)
            finally:
                self._depth -= 1
            if not isinstance(event, yaml.AliasEvent):
                self._heights[node] = self._height(node)
            elif node not in self._heights:  # it is still being read
                raise yaml.composer.ComposerError(None, None, "this value contains itself", node.start_mark)
            self._check_depth(self._heights[node], event.start_mark)
            return node

        def _height(self, node: yaml.Node) -> int:
            if isinstance(node, yaml.ScalarNode):
                return 0
            is_mapping = isinstance(node, yaml.MappingNode)
            inner = (it for pair in node.value for it in pair) if is_mapping else node.value
            return 1 + max((self._heights[it] for it in inner), default=0)

        def _check_depth(self, height: int, mark: yaml.Mark) -> None:
            if self._depth + height > DEPTH_MAX:
                problem = f"values nest deeper than {DEPTH_MAX} levels"
                raise yaml.composer.ComposerError(None, None, problem, mark)

        def construct_int(self, node: yaml.Node) -> int:
            self._check_digits(node)
            return int(super().construct_yaml_int(node))

        def construct_float(self, node: yaml.Node) -> float:
            if ":" in str(node.value):
                self._check_digits(node)
            return float(super().construct_yaml_float(node))

        def _check_digits(self, node: yaml.Node) -> None:
            """Refuse long numbers, before they are made: 1:2:3... takes time by the square of its length."""
            if len(str(node.value).replace("_", "").lstrip("+-")) > INTEGER_DIGITS_MAX:
                problem = f"a number has more than {INTEGER_DIGITS_MAX} characters: {node.value[:_SHOWN_MAX]}..."
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            super().flatten_mapping(node)
            self._merged += len(node.value)
            if self._merged > VALUES_MAX:
                problem = f"the keys << add up to more than {VALUES_MAX} values"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

    BoundedLoader.add_constructor("tag:yaml.org,2002:int", BoundedLoader.construct_int)
    BoundedLoader.add_constructor("tag:yaml.org,2002:float", BoundedLoader.construct_float)
    return BoundedLoader
