"""The names of users, from this machine's user database."""

from __future__ import annotations

import pwd
from functools import lru_cache


@lru_cache(maxsize=4096)
def user_name(userid: int) -> str:
    """The name of a user id, or its number if it has no name."""
    try:
        return pwd.getpwuid(userid).pw_name
    except (KeyError, OverflowError):
        return str(userid)
