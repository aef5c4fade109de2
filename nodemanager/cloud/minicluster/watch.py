"""Watches a MiniCluster and its pods, and tells when to list them again.

An event is only a sign that something changed: what it is, the next list shows. So no event can be missed or
read wrongly, and no list is older than its question.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from nodemanager.cloud.minicluster.client import Client, WatchExpired
from nodemanager.cloud.minicluster.port import Paths, access_of
from nodemanager.config.site import Site
from nodemanager.core.facts import CloudChanged
from nodemanager.core.ports import Clock, CloudError, CloudWatch, UnforeseenError, unforeseen_as_cloud_error

QUIET_S = 1.0  # events within this time are told once
RETRY_S = 1.0  # before a watch is begun again; doubles while watches end early
RETRY_MAX_S = 30.0
LASTING_S = 60.0  # a watch that ends before was ended early

Listener = Callable[[CloudChanged], None]


class MiniClusterWatch:
    """Watches by two connections, each in a thread of its own."""

    def __init__(self, client: Callable[[], Client], namespace: str, name: str) -> None:
        paths = Paths(namespace, name)
        self._followers = [
            _Follower(client, paths.miniclusters, fieldSelector=f"metadata.name={name}"),
            _Follower(client, paths.pods, labelSelector=f"job-name={name}"),
        ]
        self._changed = threading.Event()
        self._stopped = threading.Event()

    def start(self, listener: Listener) -> None:
        """Start watching."""
        for follower in self._followers:
            self._start_thread(partial(follower.run, self._changed, self._stopped))
        self._start_thread(lambda: self._tell(listener))

    def stop(self) -> None:
        """Stop watching. A thread that waits for an event ends with the process."""
        self._stopped.set()
        self._changed.set()

    def _tell(self, listener: Listener) -> None:
        while self._changed.wait() and not self._stopped.is_set():
            self._changed.clear()
            listener(CloudChanged())
            self._stopped.wait(QUIET_S)

    @staticmethod
    def _start_thread(work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="minicluster-watch", daemon=True).start()


class _Follower:
    """Follows one list."""

    def __init__(self, client: Callable[[], Client], path: str, **query: str) -> None:
        self._client = client
        self._path = path
        self._query = query
        self._log: Any = structlog.get_logger()

    def run(self, changed: threading.Event, stopped: threading.Event) -> None:
        """Follow the list until ``stopped``, and set ``changed`` at each event."""
        client = self._client()
        version, early, lost = "", 0, False
        while not stopped.is_set():
            started_s = time.monotonic()
            try:
                with unforeseen_as_cloud_error():
                    if not version:
                        version = client.version(self._path, **self._query)
                        changed.set()  # whatever happened since the last event
                    for kind, seen in client.watch(self._path, version, **self._query):
                        version, lost = seen, False
                        if stopped.is_set():
                            return
                        if kind != "BOOKMARK":
                            changed.set()
            except WatchExpired:
                version = ""
            except CloudError as error:
                if not lost:  # also after a watch that ended early without an error
                    lost = True
                    trace = {"exc_info": error} if isinstance(error, UnforeseenError) else {}
                    what = self._path.rpartition("/")[2]
                    self._log.warning("cloud_watch_lost", what=what, why=str(error), **trace)
                changed.set()
            early = early + 1 if time.monotonic() - started_s < LASTING_S else 0
            stopped.wait(min(RETRY_S * 2 ** max(0, early - 1), RETRY_MAX_S))
        client.close()


def watch_of(site: Site, clock: Clock) -> CloudWatch:
    """Return the watch of the site's MiniCluster. Raises :class:`CloudError`."""
    access, namespace = access_of(site, clock)
    return MiniClusterWatch(
        lambda: Client(access, clock, timeout_s=site.cloud.call_timeout_s), namespace, site.cloud.name
    )
