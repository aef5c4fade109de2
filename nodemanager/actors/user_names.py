"""The names of users, from this machine's user database."""

from __future__ import annotations

import pwd
from functools import lru_cache


@lru_cache(maxsize=4096)
def user_name(userid: int) -> str:
    """Return a user's name; the number if the user is unknown here."""
    try:
        return pwd.getpwuid(userid).pw_name
    except (KeyError, OverflowError):
        return str(userid)
