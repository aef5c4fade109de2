"""Asks a person on a terminal to choose. Without a terminal, the options answer, or the first choice does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

CHOICES_SHOWN_MAX = 20


class Unanswered(Exception):
    """An answer is needed, and nobody is there to give it. The message names the option that gives it."""


class Questions:
    """``ask``: shows a prompt and returns the line typed; None if there is no terminal."""

    def __init__(self, ask: Callable[[str], str] | None) -> None:
        self._ask = ask

    @classmethod
    def on_terminal(cls) -> Questions:
        """Ask on the terminal if standard input and standard error are one."""
        return cls(_read_line if sys.stdin.isatty() and sys.stderr.isatty() else None)

    @property
    def can_ask(self) -> bool:
        """Whether somebody is there to answer."""
        return self._ask is not None

    def choose(self, what: str, option: str, given: str | None, choices: Sequence[tuple[str, str]]) -> str:
        """Return the answer: ``given``, or the one typed, or the first choice.

        ``choices``: each a value and a text about it, the best first. Any other value may be given too.
        """
        if given:
            return given
        if self._ask is not None:
            return self._choose_on_terminal(self._ask, what, choices)
        if not choices:
            raise Unanswered(f"give {option}: there is no {what} to choose from")
        return choices[0][0]

    @staticmethod
    def _choose_on_terminal(ask: Callable[[str], str], what: str, choices: Sequence[tuple[str, str]]) -> str:
        for number, (value, text) in enumerate(choices[:CHOICES_SHOWN_MAX], 1):
            print(f"  {number:>2}  {value}  {text}".rstrip(), file=sys.stderr)
        hidden = len(choices) - CHOICES_SHOWN_MAX
        if hidden > 0:
            print(f"      and {hidden} more", file=sys.stderr)
        default = f" [{choices[0][0]}]" if choices else ""
        while True:
            typed = ask(f"{what.capitalize()}{default}: ").strip()
            if typed.isascii() and typed.isdigit() and 1 <= int(typed) <= len(choices):
                return choices[int(typed) - 1][0]
            if typed or choices:
                return typed or choices[0][0]


def _read_line(prompt: str) -> str:
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise Unanswered("the input ended before the last question")
    return line
