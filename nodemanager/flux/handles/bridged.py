"""A handle in another process, which flux-core's own Python runs: here, or on the instance's host by ssh.

So any Python drives any supported flux-core. ``far_side.py`` is what the other process runs, and describes the
frames. Each handle has a process of its own. Like a direct handle it belongs to one thread, and its loss is the
loss of one connection.
"""

from __future__ import annotations

import collections
import errno
import heapq
import itertools
import json
import os
import selectors
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import urlsplit

from nodemanager.core.untrusted import read_object
from nodemanager.flux.handles import far_side
from nodemanager.flux.handles.handle import MESSAGE_BYTES_MAX, Change, ServiceRequest, read_answer

_START_TIMEOUT_S = 30.0  # an ssh connection and flux's Python
_WRITE_TIMEOUT_S = 10.0
_END_TIMEOUT_S = 2.0
_READ_BYTES = 1 << 18
_WORDS_KEPT = 2_000  # of what a process that failed wrote
_LOST = "the connection is lost"
# Python reads the length of the program and the program from its input; all that follows are frames.
_READ_PROGRAM = (
    "import sys; source = sys.stdin.buffer;"
    " exec(compile(source.read(int(source.readline())), 'flux-bridge', 'exec'))"
)


def bridge_command(uri: str, *, here: bool) -> list[str]:
    """Return the command of the far side.

    ``here``: this machine has a ``flux`` that can reach the address. If not, an ``ssh://`` address names the host
    that has one. Raises ``ValueError`` for another address.
    """
    program = ["flux", "python", "-c", _READ_PROGRAM]
    if here:
        return [*program, uri]
    parts = urlsplit(uri)
    if parts.scheme != "ssh" or not parts.hostname:
        raise ValueError("the address of an instance elsewhere has the form ssh://HOST/PATH")
    login = f"{parts.username}@{parts.hostname}" if parts.username else parts.hostname
    port = ["-p", str(parts.port)] if parts.port else []
    ssh = shlex.split(os.environ.get("FLUX_SSH", "ssh"))  # as flux-core's own ssh connector
    there = shlex.join([*program, f"local://{parts.path}"])
    return [*ssh, "-o", "BatchMode=yes", *port, "--", login, there]


class BridgedHandle:
    """:class:`~nodemanager.flux.handles.handle.Handle` in a process of its own.

    Raises ``OSError`` if the process cannot be started or cannot connect.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._numbers = itertools.count(1)
        self._futures: dict[int, _BridgedFuture] = {}
        self._services: dict[str, _RequestWatcher] = {}
        self._due: collections.deque[Callable[[], None]] = collections.deque()  # callbacks, as their frames arrived
        self._timers: list[tuple[float, int, _Timer]] = []
        self._selector = selectors.DefaultSelector()  # of the loop
        self._frames = selectors.DefaultSelector()  # of a call that waits
        self._unread = bytearray()
        self._lost: OSError | None = None
        self._stopped = False
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the handle
        # A session of its own: a signal from the terminal is for the manager, which then closes its handles.
        self._process = subprocess.Popen(  # noqa: S603 - the command is ours
            [*command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            bufsize=0,
            start_new_session=True,
        )
        self._input, self._output = _descriptor(self._process.stdin), _descriptor(self._process.stdout)
        try:
            self._hello = self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> Mapping[str, Any]:
        """Send the program and read the first frame."""
        for end in (self._input, self._output):
            os.set_blocking(end, False)
        self._selector.register(self._output, selectors.EVENT_READ, self._receive)
        self._frames.register(self._output, selectors.EVENT_READ)
        program = Path(far_side.__file__).read_bytes()
        self._write(b"%d\n%b" % (len(program), program), _START_TIMEOUT_S)
        end_s = time.monotonic() + _START_TIMEOUT_S
        hellos: list[Mapping[str, Any]] = []
        self._take_frame: Callable[[Mapping[str, Any]], None] = hellos.append
        while not hellos:
            if time.monotonic() > end_s:
                self._lose()
            if self._lost is not None:
                raise self._lost
            self._select(end_s - time.monotonic())
        self._take_frame = self._dispatch
        if hellos[0].get("protocol") != far_side.PROTOCOL:
            raise OSError(hellos[0].get("errno") or errno.EPROTO, str(hellos[0].get("text", "unknown first frame")))
        return hellos[0]

    @property
    def where(self) -> str:
        return str(self._hello["where"])

    @property
    def version(self) -> str:
        return str(self._hello["version"])

    @property
    def rank(self) -> int:
        return int(self._hello["rank"])

    # --- calls ---

    def rpc(self, topic: str, payload: object, rank: int, *, streaming: bool = False) -> _BridgedFuture:
        return self._send_call("rpc", topic=topic, payload=payload, rank=rank, streaming=streaming)

    def rpc_text(self, topic: str, payload: object, rank: int) -> _BridgedFuture:
        return self._send_call("rpc", topic=topic, payload=payload, rank=rank, streaming=False, as_text=True)

    def lookup(self, key: str, namespace: str = "") -> _BridgedFuture:
        return self._send_call("lookup", key=key, namespace=namespace, names=False)

    def lookup_names(self, directory: str) -> _BridgedFuture:
        return self._send_call("lookup", key=directory, namespace="", names=True)

    def commit(self, changes: Sequence[Change], *, namespace: str = "", sync: bool = False) -> _BridgedFuture:
        plain = [(change.key, change.text, change.append) for change in changes]
        return self._send_call("commit", changes=plain, namespace=namespace, sync=sync)

    def submit(self, jobspec: Mapping[str, Any], urgency: int) -> _BridgedFuture:
        return self._send_call("submit", jobspec=json.dumps(jobspec), urgency=urgency)

    def take_user_role(self) -> None:
        self._send("take_user_role")

    def _send_call(self, do: str, **arguments: object) -> _BridgedFuture:
        number = next(self._numbers)
        self._send(do, id=number, **arguments)
        topic, streaming = str(arguments.get("topic", "")), bool(arguments.get("streaming", False))
        future = self._futures[number] = _BridgedFuture(self, number, topic, streaming=streaming)
        return future

    def _send(self, do: str, **arguments: object) -> None:
        data = json.dumps({"do": do, **arguments}).encode()
        self._write(far_side.LENGTH.pack(len(data)) + data, _WRITE_TIMEOUT_S)

    def _write(self, data: bytes, timeout_s: float) -> None:
        """Write all of it, or raise ``OSError``."""
        rest, end_s = memoryview(data), time.monotonic() + timeout_s
        while rest:
            if self._lost is not None:
                raise self._lost
            try:
                rest = rest[os.write(self._input, rest) :]
            except BlockingIOError:
                self._wait_for_room(end_s)
            except BrokenPipeError:
                self._lose()

    def _wait_for_room(self, end_s: float) -> None:
        """Wait until more can be written. Read meanwhile: a far side that waits for us to read does not read."""
        if time.monotonic() > end_s:
            self._lose(OSError(errno.ENOTCONN, "the bridge to Flux does not read"))
            return
        with selectors.DefaultSelector() as both:
            both.register(self._input, selectors.EVENT_WRITE)
            both.register(self._output, selectors.EVENT_READ)
            for key, _ in both.select(end_s - time.monotonic()):
                if key.fd == self._output:
                    self._receive()

    # --- frames from the far side ---

    def _receive(self) -> None:
        """Read what has arrived. Answers are kept; only ``run`` calls back."""
        try:
            received = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return
        if not received:
            self._lose()
            return
        self._unread += received
        start = 0
        while len(self._unread) - start >= far_side.LENGTH.size:
            length = far_side.LENGTH.unpack_from(self._unread, start)[0]
            end = start + far_side.LENGTH.size + length
            if length > MESSAGE_BYTES_MAX:  # less than any text would be, read as a length
                self._lose()
                break
            if len(self._unread) < end:
                break
            data = self._unread[start + far_side.LENGTH.size : end]
            try:
                if data[:1].isdigit():
                    self._take_answer(data)
                else:
                    self._take_frame(read_object(data, size_max=MESSAGE_BYTES_MAX))
            except ValueError:  # something else writes to the far side's output
                self._lose()
                break
            start = end
        del self._unread[:start]

    def _take_answer(self, data: bytearray) -> None:
        number, _, text = data.partition(b"\n")
        if (future := self._futures.get(int(number))) is None:
            return
        try:
            answer = read_answer(text.decode())
        except OSError as error:  # this one: the far side has said all that it would about it
            answer = error
        future.is_over = not future.streaming
        future.arrive(answer)

    def _dispatch(self, frame: Mapping[str, Any]) -> None:
        if "asked" in frame:
            self._due.append(partial(self._services[frame["topic"]].callback, _BridgedRequest(self, frame)))
        elif "lost" in frame:
            self._lose(OSError(frame["lost"] or errno.ENOTCONN, frame["text"]))
        elif (future := self._futures.get(frame["id"])) is not None:
            future.is_over = True
            future.arrive(OSError(frame["errno"], frame["text"]))

    def _lose(self, why: OSError | None = None) -> None:
        if self._lost is not None:
            return
        self._lost = why or OSError(errno.ENOTCONN, self._why_lost())
        for future in self._futures.values():
            future.arrive(self._lost)

    def _why_lost(self) -> str:
        self._words.seek(max(0, self._words.seek(0, os.SEEK_END) - _WORDS_KEPT))
        words = self._words.read().decode(errors="replace").strip()
        return f"the bridge to Flux ended: {words}" if words else _LOST

    def wait_for(self, future: _BridgedFuture, timeout_s: float) -> None:
        """Wait until the future has an answer; keep what else arrives for ``run``."""
        end_s = time.monotonic() + timeout_s
        while not future.arrived:
            if self._lost is not None:
                raise self._lost
            if (left_s := end_s - time.monotonic()) <= 0.0:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            if self._frames.select(left_s):
                self._receive()

    def cancel(self, number: int, topic: str) -> None:
        self._send("cancel", stream=number, topic=topic)

    def drop(self, number: int) -> None:
        """Forget a future. One that may still be answered is also dropped on the far side."""
        future = self._futures.pop(number, None)
        if future is not None and not future.is_over and self._lost is None:
            self._send("drop", future=number)

    # --- services ---

    def register(self, service: str) -> _BridgedFuture:
        return self._send_call("register", service=service)

    def unregister(self, service: str) -> _BridgedFuture:
        return self._send_call("unregister", service=service)

    def on_request(
        self, topic: str, callback: Callable[[ServiceRequest], None], *, for_users: bool
    ) -> _RequestWatcher:
        return _RequestWatcher(self, topic, callback, for_users)

    def watch_requests(self, watcher: _RequestWatcher) -> None:
        self._services[watcher.topic] = watcher
        self._send("watch_requests", topic=watcher.topic, users=watcher.for_users)

    def respond(self, **answer: object) -> None:
        self._send("respond", **answer)

    # --- the loop ---

    def run(self) -> None:
        self._stopped = False
        while not self._stopped:
            if self._call_back():
                continue
            if self._lost is not None:
                raise self._lost
            self._select(self._timers[0][0] - time.monotonic() if self._timers else None)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._due.append(callback)

    def _call_back(self) -> bool:
        """Make one callback that is due; False if none is."""
        if self._due:
            self._due.popleft()()
        elif self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2].fire()
        else:
            return False
        return True

    def _select(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(None if timeout_s is None else max(0.0, timeout_s)):
            key.data()

    def stop(self) -> None:
        self._stopped = True

    def timer(self, delay_s: float, repeat_s: float, callback: Callable[[], None]) -> _Timer:
        return _Timer(self, delay_s, repeat_s, callback)

    def call_at(self, at_s: float, timer: _Timer) -> None:
        heapq.heappush(self._timers, (at_s, next(self._numbers), timer))

    def on_readable(self, fd: int, callback: Callable[[], None]) -> _ReadWatcher:
        return _ReadWatcher(self._selector, fd, callback)

    def close(self) -> None:
        """End the process: it exits when its input ends."""
        self._lost = self._lost or OSError(errno.ENOTCONN, "closed")
        self._selector.close()
        self._frames.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._words.close()


def _descriptor(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise ValueError("the process was started without pipes")
    return pipe.fileno()


class _BridgedFuture:
    def __init__(self, handle: BridgedHandle, number: int, topic: str, *, streaming: bool) -> None:
        self._handle = handle
        self._number = number
        self._topic = topic
        self.streaming = streaming
        self.is_over = False  # no answer can come any more
        self._callback: Callable[[], None] | None = None
        self._timeout: _Timer | None = None
        self.arrived: collections.deque[Any] = collections.deque()

    def get(self) -> Any:
        if isinstance(self.arrived[0], OSError):
            raise self.arrived[0]
        return self.arrived[0]

    def wait(self, timeout_s: float) -> Self:
        self._handle.wait_for(self, timeout_s)
        return self

    def arrive(self, answer: Any) -> None:
        self.arrived.append(answer)
        if self._callback is not None:
            self._handle.call_soon(self._call_back)

    def then(self, callback: Callable[[], None], timeout_s: float | None = None) -> None:
        self._callback = callback
        for _ in self.arrived:
            self._handle.call_soon(self._call_back)
        if timeout_s is not None:
            self._timeout = self._handle.timer(timeout_s, 0.0, self._end_waiting)
            self._timeout.start()

    def _end_waiting(self) -> None:
        if not self.arrived:
            self.arrive(OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def _call_back(self) -> None:
        if self._callback is not None and self.arrived:
            if self._timeout is not None:
                self._timeout.stop()
            self._callback()

    def next(self) -> None:
        self.arrived.popleft()

    def cancel(self) -> None:
        self._handle.cancel(self._number, self._topic)

    def destroy(self) -> None:
        self._callback = None
        if self._timeout is not None:
            self._timeout.stop()
        self._handle.drop(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()


class _Timer:
    def __init__(
        self, handle: BridgedHandle, delay_s: float, repeat_s: float, callback: Callable[[], None]
    ) -> None:
        self._handle = handle
        self._delay_s = delay_s
        self._repeat_s = repeat_s
        self._callback = callback
        self._at_s: float | None = None

    def start(self) -> Self:
        if self._at_s is None:
            self._set(self._delay_s)
        return self

    def _set(self, delay_s: float) -> None:
        self._at_s = time.monotonic() + delay_s
        self._handle.call_at(self._at_s, self)

    def fire(self) -> None:
        """Called at each time that was set; one that was stopped or set again meanwhile does nothing."""
        if self._at_s is None or self._at_s > time.monotonic():
            return
        self._at_s = None
        if self._repeat_s:
            self._set(self._repeat_s)
        self._callback()

    def stop(self) -> Self:
        self._at_s = None
        return self

    def destroy(self) -> None:
        self.stop()


class _ReadWatcher:
    def __init__(self, selector: selectors.BaseSelector, fd: int, callback: Callable[[], None]) -> None:
        self._selector = selector
        self._fd = fd
        self._callback = callback
        self._started = False

    def start(self) -> Self:
        if not self._started:
            self._selector.register(self._fd, selectors.EVENT_READ, self._callback)
        self._started = True
        return self

    def stop(self) -> Self:
        if self._started:
            self._selector.unregister(self._fd)
        self._started = False
        return self

    def destroy(self) -> None:
        self.stop()


class _RequestWatcher:
    def __init__(
        self, handle: BridgedHandle, topic: str, callback: Callable[[ServiceRequest], None], for_users: bool
    ) -> None:
        self._handle = handle
        self.topic = topic
        self.callback = callback
        self.for_users = for_users

    def start(self) -> Self:
        self._handle.watch_requests(self)
        return self

    def stop(self) -> Self:
        return self

    def destroy(self) -> None:
        """The far side's watch ends with the connection."""


class _BridgedRequest:
    def __init__(self, handle: BridgedHandle, frame: Mapping[str, Any]) -> None:
        self._handle = handle
        self._asked = frame["asked"]
        self._text: str | bool | None = frame["text"]
        self.userid = int(frame["userid"])
        self.by_owner = bool(frame["owner"])

    @property
    def text(self) -> str | None:
        if isinstance(self._text, bool):
            raise OSError(errno.EPROTO, "the payload is no text")
        return self._text

    def respond(self, text: str) -> None:
        self._handle.respond(asked=self._asked, text=text)

    def respond_error(self, number: int, text: str) -> None:
        self._handle.respond(asked=self._asked, errno=number, text=text)
