"""Read YAML into plain values, with the line and column of each."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from nodemanager.core.untrusted import VALUES_MAX, YAML_FAULTS, yaml_loader

Path = tuple[str | int, ...]
Place = tuple[int, int]  # line and column, from 1
_SHOWN_MAX = 60


class YamlFault(Exception):
    """The text is not YAML that can be read. Holds the place and the fault."""

    def __init__(self, place: Place, why: str) -> None:
        super().__init__(why)
        self.place = place
        self.why = why


@dataclass(frozen=True, slots=True)
class YamlText:
    """``places`` has the place of each value by its path, and of each key by its path followed by "key"."""

    value: Any
    places: Mapping[Path, Place] = field(default_factory=dict)
    doubles: tuple[tuple[Place, str], ...] = ()  # keys that occur twice in one mapping

    def place(self, path: Path) -> Place:
        """Return the place of a value, or of the nearest value around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, (1, 1))


def read_yaml(text: str) -> YamlText:
    """Read one YAML document. Raises ``YamlFault``."""
    loader = _loader(text)
    try:
        root = loader.get_single_node()
        reader = _Reader(loader)
        value = None if root is None else reader.read(root, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlFault(_place(mark), error.problem or "this is not YAML") from error
    finally:
        loader.dispose()
    return YamlText(value, reader.places, tuple(reader.doubles))


def _loader(text: str) -> yaml.SafeLoader:
    try:
        return yaml_loader(text)
    except yaml.error.MarkedYAMLError as error:
        raise YamlFault((1, 1), str(error.problem)) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise YamlFault(place, f"the character U+{ord(text[error.position]):04X} is not allowed in YAML") from error


def _place(mark: Any) -> Place:
    return (1, 1) if mark is None else (mark.line + 1, mark.column + 1)


class _Reader:
    def __init__(self, loader: yaml.SafeLoader) -> None:
        self.places: dict[Path, Place] = {}
        self.doubles: list[tuple[Place, str]] = []
        self._loader = loader
        self._count = 0

    def read(self, node: yaml.Node, path: Path) -> Any:
        self._count += 1
        place = _place(node.start_mark)
        if self._count > VALUES_MAX:
            raise YamlFault(place, f"the file has more than {VALUES_MAX} values")
        self.places[path] = place
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            try:
                return self._loader.construct_object(node)
            except YAML_FAULTS as error:  # such as the date 2026-13-01
                shown = f"{str(node.value)[:_SHOWN_MAX]!r} is no {str(node.tag).rpartition(':')[2]}"
                why = str(error) if isinstance(error, ValueError) else shown
                raise YamlFault(place, why) from error
        self._note_doubles(node)
        self._loader.flatten_mapping(node)
        mapping: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else str(key_node.tag)
            mapping[key] = self.read(value_node, (*path, key))
            self.places[(*path, key, "key")] = _place(key_node.start_mark)
        return mapping

    def _note_doubles(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen and key_node.value != "<<":
                    self.doubles.append((_place(key_node.start_mark), key_node.value))
                seen.add(key_node.value)
