"""An argparse parser whose errors name the nearest option or verb, and that never hides a failed write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn


class WrongUse(Exception):
    """The command line is wrong. The message names the fault and what to give instead.

    ``read_on``: where to read more.
    """

    def __init__(self, message: str, read_on: str) -> None:
        super().__init__(message)
        self.read_on = read_on


class Parser(argparse.ArgumentParser):
    """Raises :class:`WrongUse` at an unknown verb, option or argument, and names the nearest known one."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.groups: Mapping[str, Sequence[str]] = {}  # the verbs by the title that --help gives them
        super().__init__(*arguments, **settings)

    def _get_formatter(self) -> argparse.HelpFormatter:
        return _HelpFormatter(self.prog, self.groups)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse, and raise if an argument is left over. argparse would let the outer parser report it."""
        chosen, left = super().parse_known_args(args, namespace)
        if left:
            self._report_left(left)
        return chosen, []

    def _report_left(self, left: Sequence[str]) -> NoReturn:
        unknown = next((word for word in left if word.startswith("-") and word != "-"), None)
        if unknown is None:
            # The name of the verb is the last word of the program's.
            verb = self.prog.split(maxsplit=1)[-1]
            takes = "takes no argument" if not any(self.arguments()) else "does not take so many arguments"
            self.error(f"{verb} {takes}: {' '.join(left)}")
        name = unknown.partition("=")[0]
        known = [option for action in self.options() for option in action.option_strings]
        if self.verbs() is not None:
            self.error(f"no option {name} is allowed before the verb: the options of a verb follow it")
        self.error(f"there is no option {name}{nearest(name, known)}")

    def error(self, message: str) -> NoReturn:
        """Raise :class:`WrongUse`. argparse would print the message and exit."""
        raise WrongUse(f"{self.prog}: {message}", f"Read more: {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse names no public type
            hint = nearest(str(value), [name for name, _ in self.verbs() or ()])
            raise argparse.ArgumentError(None, f'there is no verb "{value}"{hint}')
        hint = nearest(str(value), choices) or f": give one of {', '.join(choices)}"
        raise argparse.ArgumentError(action, f'"{value}" is not allowed{hint}')

    def _print_message(self, message: str, file: Any = None) -> None:
        # Some versions of argparse ignore a failed write, so a cut --help would seem whole.
        if message:
            (file or sys.stderr).write(message)

    def options(self) -> Iterator[argparse.Action]:
        """The options that --help shows."""
        shown = (action for action in self._actions if action.help != argparse.SUPPRESS)
        yield from (action for action in shown if action.option_strings)

    def arguments(self) -> Iterator[argparse.Action]:
        """The positional arguments. A verb is none."""
        for action in self._actions:
            if not action.option_strings and not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
                yield action

    def verbs(self) -> list[tuple[str, Parser]] | None:
        """The verbs that --help shows, each with its parser; None if this parser has no verbs."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
                listed = [shown.dest for shown in action._choices_actions]  # noqa: SLF001
                return [(name, action.choices[name]) for name in listed]
        return None


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps a text, except for lines that are indented, such as examples. Lists verbs below titles."""

    def __init__(self, prog: str, groups: Mapping[str, Sequence[str]]) -> None:
        super().__init__(prog)
        self._groups = groups

    def _format_action(self, action: argparse.Action) -> str:
        if not self._groups or not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return super()._format_action(action)
        by_name = {shown.dest: shown for shown in action._choices_actions}  # noqa: SLF001
        lines = []
        for title, names in self._groups.items():
            lines.append(f"{' ' * self._current_indent}{title}:\n")
            self._indent()
            lines += [super(_HelpFormatter, self)._format_action(by_name[name]) for name in names]
            self._dedent()
        return "".join(lines)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if any(line.startswith("  ") for line in text.splitlines()):
            return "".join(f"{indent}{line}" for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


def nearest(word: str, known: Sequence[str]) -> str:
    """Return ``: did you mean X?`` for the known word that is nearest; "" if none is near."""
    found = get_close_matches(word, known, n=1)
    return f": did you mean {found[0]}?" if found else ""
