"""What an error while writing the history says: the file is unusable, or the rows are, or neither."""

from __future__ import annotations

import sqlite3

# These come from the disk, from another process or from a limit. The file itself may be whole.
OUTSIDE_FAULTS = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_AUTH,
    }
)
EXTENDED_BITS = 8  # an extended error code has its primary code in the lowest byte


def blames_rows(error: Exception) -> bool:
    """Whether a row has a value that no file could hold: a type SQLite lacks, a huge number, a broken character."""
    return isinstance(error, sqlite3.ProgrammingError | sqlite3.InterfaceError | OverflowError | UnicodeEncodeError)


def blames_file(error: Exception) -> bool:
    """Whether the file itself is unusable.

    A damaged file makes SQLite raise errors of many kinds. In a damaged schema a table is missing
    (``OperationalError``), or a name is not text (``UnicodeDecodeError``).
    """
    if blames_rows(error) or isinstance(error, OSError | MemoryError):
        return False
    if not isinstance(error, sqlite3.Error):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # raised by Python on what it read, such as a name that is not text
        return True
    return code & ((1 << EXTENDED_BITS) - 1) not in OUTSIDE_FAULTS
