"""A list of rows: as a table, or each row in a format of the user's, as ``flux jobs -o`` does it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    Cell = str | Text


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``shown``: whether it is part of the table; a format may name any."""

    name: str
    right: bool = False
    shown: bool = True
    no_wrap: bool = False

    @property
    def key(self) -> str:
        """How a format names it."""
        return self.name.replace(" ", "_")


def _columns(shown: str, more: str = "", right: str = "") -> tuple[Column, ...]:
    """Columns by their keys."""
    return tuple(
        Column(key.replace("_", " "), key in right.split(), key in shown.split())
        for key in (*shown.split(), *more.split())
    )


NODES = _columns(
    "slot type state since paid_for cost because",
    "node rank size market cloud zone price jobs",
    right="paid_for cost rank price",
)
JOBS = _columns("job user state wants waits because", "queue priority on", right="waits priority")
# Nodes and cores: free of all. Ours: our jobs there, of those allowed.
PEERS = _columns("peer state nodes cores waiting wait price ours", right="nodes cores waiting wait price ours")
EVENTS = _columns("at kind what subject because")
SLOTS = _columns("type slots online leased movable names", right="slots online leased movable")
PRICES = tuple(
    Column(name, no_wrap=name not in {"node type", "result"})
    for name in ("node type", "size", "region", "market", "site", "list", "result")
)


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows by the keys of their columns. ``notes``: what belongs below the rows, or instead of them.

    ``above``: what belongs above the rows. ``hidden``: columns that are not shown.
    """

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Cell]]
    notes: Sequence[RenderableType] = ()
    above: Sequence[RenderableType] = ()
    hidden: Sequence[str] = ()

    def table(self, *, headers: bool = True) -> RenderableType:
        """The table, without what is above and below it."""
        from rich import box  # noqa: PLC0415 - a verb's --help does without Rich
        from rich.table import Table  # noqa: PLC0415

        shown = [it for it in self.columns if it.shown and it.key not in self.hidden]
        frame = box.SIMPLE_HEAD if headers else None
        table = Table(box=frame, show_header=headers, pad_edge=False)
        for it in shown:
            justify = "right" if it.right else "left"
            table.add_column(it.name, justify=justify, overflow="fold", no_wrap=it.no_wrap)  # type: ignore[arg-type]
        for row in self.rows:
            table.add_row(*(row[it.key] for it in shown))
        return table

    def __rich__(self) -> RenderableType:
        from rich.console import Group  # noqa: PLC0415

        table = () if self.notes and not self.rows else (self.table(),)
        return Group(*self.above, *table, *self.notes)

    def lines(self, row_format: str, *, headers: bool = True) -> Iterator[str]:
        """Each row in a format that :func:`read_format` has read, after a line with the names of the columns."""
        if headers:
            yield row_format.format_map({it.key: it.name for it in self.columns}).rstrip()
        for row in self.rows:
            cells = {key: cell if isinstance(cell, str) else cell.plain for key, cell in row.items()}
            yield row_format.format_map(cells).rstrip()


def read_format(columns: Sequence[Column]) -> Callable[[str], str]:
    """Return what reads ``-o FORMAT``: a format string of Python that names columns only.

    It raises ``ArgumentTypeError``, which says what is wrong.
    """
    keys = [it.key for it in columns]

    def read(text: str) -> str:
        try:
            fields = [(name, spec) for _, name, spec, _ in Formatter().parse(text) if name is not None]
            if unknown := [name for name, _ in fields if name not in keys]:
                raise argparse.ArgumentTypeError(f'there is no column "{unknown[0]}": give {", ".join(keys)}')
            if not fields or any("{" in (spec or "") for _, spec in fields):
                raise argparse.ArgumentTypeError(
                    f"give columns in braces, such as '{{{keys[0]}:<10}} {{{keys[1]}}}'"
                )
            text.format_map(dict.fromkeys(keys, ""))
        except (ValueError, OverflowError, MemoryError) as error:
            raise argparse.ArgumentTypeError(f"no format for text: {str(error) or 'too wide'}") from error
        return text

    return read
