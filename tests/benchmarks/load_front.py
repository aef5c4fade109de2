"""What stands beside the manager in ``bench_load``, and whose time is whose."""

from __future__ import annotations

import tempfile
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from nodemanager.actors.manager import Publication
from nodemanager.cli.service_client import Client
from nodemanager.config.site import Site
from nodemanager.history.follower import Backlog, Follower, HistoryUpdate, rest_s
from nodemanager.history.store.reader import HistoryReader
from nodemanager.history.store.writer import HistoryWriter
from nodemanager.service.outputs import Outputs
from nodemanager.web.api.control import Control
from nodemanager.web.api.handlers import WebContext
from nodemanager.web.api.metrics import Metrics
from nodemanager.web.listen import UnixSocket
from nodemanager.web.state.access import Access
from nodemanager.web.state.board import Board
from nodemanager.web.thread import WebServer

SCRAPE_EVERY_S = 15.0
MEASURED_S = 10.0


@dataclass
class Meter:
    """Time, by whose it is; of the manager, by its ticks too. In seconds, of the processor's or of the wall's."""

    clock_s: Callable[[], float] = time.thread_time
    of: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    handled: Counter[str] = field(default_factory=Counter)
    ticks_s: list[float] = field(default_factory=list)
    planned: bool = False
    began_s: float | None = None  # the message that is being handled

    @property
    def worked_s(self) -> float:
        return self.clock_s() - self.began_s if self.began_s is not None else 0.0

    def clear(self) -> None:
        self.of.clear()
        self.handled.clear()
        self.ticks_s.clear()


class VirtualFront:
    """What stands beside the manager, called at the moments at which its threads would be awake."""

    def __init__(self, folder: Path, meter: Meter) -> None:
        self.board = Board()
        self.metrics = Metrics(self.board)
        self.journal = HistoryWriter(folder / "journal.sqlite")
        self.journal.start()
        self._follower = Follower()
        self._meter = meter
        self._waiting = Backlog()
        self._awake_s = self._scrape_s = 0.0

    def publish(self, published: Publication) -> None:
        self.board.publish(published)
        self._waiting.add(published)

    def at(self, now_s: float) -> None:
        began_s = time.thread_time()
        if self._waiting and now_s >= self._awake_s:
            happened: HistoryUpdate = self._follower.follow(self._waiting.take())
            for sink in (self.board.take_in, self.metrics.take_in, self.journal.take_in):
                sink(happened)
            self._awake_s = now_s + rest_s(time.thread_time() - began_s)
            self._meter.handled["chronicle"] += 1
        if now_s >= self._scrape_s:
            self._scrape_s = now_s + SCRAPE_EVERY_S
            self.metrics.render()
        self._meter.of["chronicle"] += time.thread_time() - began_s


class LiveFront:
    """The front itself, in its threads, and asked over HTTP: virtual time goes no faster than this machine's."""

    def __init__(self, site: Site) -> None:
        self.late_s = 0.0  # how far virtual time fell behind, at the worst
        self._front = Outputs(site)
        self._front.start(cast("Any", None))
        self._page = f"http://{site.web.listen}/metrics"
        self._ahead_s: float | None = None  # virtual time, of this machine's
        threading.Thread(target=self._scrape, daemon=True).start()

    def publish(self, published: Publication) -> None:
        self._front.publish(published)

    def at(self, now_s: float) -> None:
        if self._ahead_s is None:
            self._ahead_s = now_s - time.monotonic()
        left_s = now_s - self._ahead_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        else:
            self.late_s = max(self.late_s, -left_s)

    def _scrape(self) -> None:
        while True:
            time.sleep(SCRAPE_EVERY_S)
            with urllib.request.urlopen(self._page) as answer:  # noqa: S310 - its own server
                answer.read()


def listening_share() -> float:
    """What the server costs while nobody asks it anything."""
    with tempfile.TemporaryDirectory(prefix="bench-load-") as folder:
        board = Board()
        control = Control(board, cast("Any", None))
        journal = HistoryReader(Path(folder) / "journal.sqlite")
        served = WebContext(board, Metrics(board), journal, control, Access(None, by_socket=True))
        place = UnixSocket(Path(folder) / "web.sock")
        server = WebServer(place, served)
        server.start()
        server.is_listening.wait()
        Client(place, Path(folder) / "no-token").get("/openapi.json")  # once it has begun
        share = share_of(MEASURED_S)
        server.stop(MEASURED_S)
    return share


def share_of(seconds: float) -> float:
    """What the processor does meanwhile for this process."""
    began_s, began_at_s = time.process_time(), time.monotonic()
    time.sleep(seconds)
    return (time.process_time() - began_s) / (time.monotonic() - began_at_s)
