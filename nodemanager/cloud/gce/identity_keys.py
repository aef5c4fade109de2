"""Fetches the keys with which Google signs identity tokens, for the join service, which talks to nobody."""

from __future__ import annotations

from typing import Any, Protocol

import structlog
from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import LibcloudError

from nodemanager.cloud.gce.driver import GceDriver
from nodemanager.core.ports import Clock

FETCH_EVERY_S = 60.0  # at most, also if the join service asks more often


class KeyFile(Protocol):
    """Where the join service finds the keys."""

    def is_due(self) -> bool:
        """Whether the keys should be fetched. Raises ``OSError``."""
        ...

    def post(self, keys: Any, cache_control: str) -> None:
        """Replace the keys. Raises ``ValueError`` if they are none, ``OSError``."""
        ...


class KeyCourier:
    """Brings the keys whenever they are due. Serves one thread. A failure is logged and tried again later."""

    def __init__(self, driver: GceDriver, file: KeyFile, clock: Clock) -> None:
        self._driver = driver
        self._file = file
        self._clock = clock
        self._next_s = clock.monotonic_s()
        self._log: Any = structlog.get_logger()

    def bring_if_due(self) -> None:
        """Fetch the keys if they are due and were not fetched within the last minute."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return
        try:
            if not self._file.is_due():
                return
            self._file.post(*self._driver.identity_keys())
        except (BaseHTTPError, LibcloudError, OSError, ValueError) as error:
            self._log.error("identity_keys_missing", why=str(error))
        self._next_s = now_s + FETCH_EVERY_S
