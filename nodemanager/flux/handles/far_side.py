"""The calls to flux-core's bindings, and the far side of a bridge: a process that makes them for a node manager.

Where the node manager can import the bindings, it uses the functions of the first part. Where it cannot, it runs
this file by flux-core's own Python (``flux python``, here or on another host). So the file imports only the
standard library and flux-core, and keeps to the syntax of Python 3.6, the oldest that flux-core supports.

The two sides exchange frames by the far side's standard input and output. A frame is its length in 4 bytes,
big-endian, and a JSON object, or an answer. The far side's first frame is ``{"protocol", "version", "rank",
"where"}``, or ``{"errno", "text"}`` if it has no connection; then it exits. Each later frame answers or asks:

- ``{"id", "do", ...}`` from the near side: do this. ``do`` names a method of :class:`FarSide`.
- an answer to it from the far side: the id in digits, a line break, and JSON as Flux sent it, which may nest too
  deep for Python; or ``{"id", "errno", "text"}``. A stream has many.
- ``{"asked", "topic", "text", "userid", "owner"}`` from the far side: a request to a service.
- ``{"lost": errno, "text"}`` from the far side: the connection is lost. It exits.

A side that does not read is not written to: the pipes are the only buffers, and Flux keeps what does not fit. The
far side exits when its input ends, which also frees its services.

Sources: flux-core's ``flux.core.handle``, ``flux.rpc``, ``flux.kvs``, ``flux.job.submit``; RFC 6 (RPC), RFC 11
and 16 (KVS). It calls the C API where ``flux.job`` would import PLY, which an installation may lack.
"""

import errno
import json
import os
import signal
import struct
import sys
from typing import Any

PROTOCOL = 2
LENGTH = struct.Struct(">I")
_READ_BYTES = 1 << 16
_STDIN, _STDOUT = 0, 1
_LEADER = 0  # every service that streams to us is the leader's
# Before 0.83 the job manager answers this request twice. The second answer would reach the next request, because a
# future that is destroyed frees its matchtag for it. The future of a stream does not.
_POST_EVENT = "job-manager.post-event.post"
_POST_EVENT_ANSWERS_ONCE = (0, 83)


# --- calls ------------------------------------------------------------------------------------------------


def version() -> str:
    """Return the version that the bindings were built for."""
    from _flux._core import ffi, lib

    return str(ffi.string(lib.flux_core_version_string()).decode())


def open_handle(uri: str) -> Any:
    """Connect; "" means the enclosing instance. Raises ``OSError``."""
    import flux

    return flux.Flux(uri) if uri else flux.Flux()


def resolve(uri: str) -> str:
    """Find the address of an instance such as ``jobid:ID``. Raises ``ValueError`` and ``OSError``."""
    import flux.uri

    return str(flux.uri.FluxURIResolver().resolve(uri))


def send_rpc(handle: Any, topic: str, payload: Any, rank: int, streaming: bool) -> Any:
    """Send a request; read the answer with the future's ``get_str``."""
    import flux.constants

    if topic == _POST_EVENT and tuple(map(int, version().split(".")[:2])) < _POST_EVENT_ANSWERS_ONCE:
        streaming = True
    return checked(handle.rpc(topic, payload, rank, flux.constants.FLUX_RPC_STREAMING if streaming else 0))


def send_cancel(handle: Any, topic: str, stream: Any) -> None:
    """Ask the service to end a stream of ``topic``."""
    import flux.constants

    payload = {"matchtag": stream.pimpl.get_matchtag()}
    flags = flux.constants.FLUX_RPC_NORESPONSE
    with handle.rpc(topic + "-cancel", payload, _LEADER, flags):
        pass


def send_lookup(handle: Any, key: str, namespace: str, names: bool) -> Any:
    """Ask for a value of the KVS, or with ``names`` for the names in a directory. Read it with ``read_lookup``."""
    import flux.future
    import flux.kvs

    raw = flux.kvs.RAW
    where = namespace.encode() if namespace else None
    flags = raw.FLUX_KVS_READDIR if names else 0
    return checked(flux.future.Future(raw.flux_kvs_lookup(handle, where, flags, key.encode())))


def read_lookup(future: Any, names: bool) -> Any:
    """Return the value as text, None if there is none; or the sorted names. Raises ``OSError``."""
    import flux.kvs
    from _flux._core import ffi

    value = ffi.new("char *[1]")
    try:
        if names:
            flux.kvs.RAW.flux_kvs_lookup_get_treeobj(future, value)
        else:
            flux.kvs.RAW.flux_kvs_lookup_get(future, value)
    except FileNotFoundError:
        return [] if names else None
    text = ffi.string(value[0]).decode(errors="replace") if value[0] != ffi.NULL else ""
    return sorted(json.loads(text)["data"]) if names else text


def send_commit(handle: Any, changes: Any, namespace: str, sync: bool) -> Any:
    """Send one transaction. ``changes``: (key, text or None to unlink, whether to append)."""
    import flux.constants
    import flux.future
    import flux.kvs

    raw = flux.kvs.RAW
    transaction = raw.flux_kvs_txn_create()
    try:
        for key, text, append in changes:
            if text is None:
                raw.flux_kvs_txn_unlink(transaction, 0, key.encode())
            else:
                flags = flux.constants.FLUX_KVS_APPEND if append else 0
                raw.flux_kvs_txn_put_raw(transaction, flags, key.encode(), text.encode(), len(text.encode()))
        where = namespace.encode() if namespace else None
        flags = flux.constants.FLUX_KVS_SYNC if sync else 0
        return checked(flux.future.Future(raw.flux_kvs_commit(handle, where, flags, transaction)))
    finally:
        raw.flux_kvs_txn_destroy(transaction)


def send_submit(handle: Any, jobspec: str, urgency: int) -> Any:
    """Send a jobspec, as JSON. Read the answer with ``read_submit``."""
    import flux.future

    return checked(flux.future.Future(_jobs().flux_job_submit(handle, jobspec.encode(), urgency, 0)))


def read_submit(future: Any) -> int:
    """Return the new job's id. Raises ``OSError`` with the words of the validator that refused the job, if any."""
    from _flux._core import ffi

    job_id = ffi.new("flux_jobid_t[1]")
    try:
        _jobs().flux_job_submit_get_id(future, job_id)
    except OSError as error:
        raise OSError(error.errno, future.error_string() or error.strerror)
    return int(job_id[0])


def _jobs() -> Any:
    import flux.wrapper
    from _flux._core import ffi, lib

    return flux.wrapper.Wrapper(ffi, lib, prefixes=["flux_job_"])


def watch_requests(handle: Any, topic: str, callback: Any, for_users: bool) -> Any:
    """Watch the requests to a method of a registered service; ``callback`` gets each message."""
    import flux.constants

    return handle.msg_watcher_create(
        lambda _handle, _watcher, message, _args: callback(message),
        type_mask=flux.constants.FLUX_MSGTYPE_REQUEST,
        topic_glob=topic,
        rolemask=flux.constants.FLUX_ROLE_USER if for_users else None,
    )


def credential(message: Any, name: str) -> int:
    """Read the sender's ``userid`` or ``rolemask``. The bindings of 0.72 have no attributes for them."""
    from _flux._core import ffi

    value = ffi.new("uint32_t [1]")
    getattr(message.pimpl, "get_" + name)(value)
    return int(value[0])


def is_by_owner(message: Any) -> bool:
    """Tell whether the instance's owner sent the message."""
    import flux.constants

    return bool(credential(message, "rolemask") & flux.constants.FLUX_ROLE_OWNER)


def take_user_role(handle: Any) -> None:
    """Send further messages without the owner's role. Source: flux-core's local connector."""
    import flux.constants
    from _flux._core import ffi

    role = ffi.new("uint32_t *", flux.constants.FLUX_ROLE_USER)
    handle.opt_set("flux::testing_rolemask", role, ffi.sizeof("uint32_t"))


def checked(future: Any) -> Any:
    """Return the future of a request. It is empty if the connection is being lost: then raise ``OSError``."""
    if future.handle is None:
        raise OSError(errno.ENOTCONN, "the connection is lost")
    return future


# --- the far side of a bridge -----------------------------------------------------------------------------


class FarSide:
    """One connection, driven by the frames of the near side."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._unread = bytearray()
        self._futures: Any = {}  # by the id of the frame that made each
        self._watchers: Any = []
        self._asked: Any = {}  # requests to our services that the near side has not answered
        self._asked_count = 0

    def run(self) -> None:
        """Serve until the input ends. Raises ``OSError`` if the connection is lost."""
        import flux.constants

        os.set_blocking(_STDIN, False)
        on_input = self._handle.fd_watcher_create(_STDIN, lambda *_: self._read_input(), flux.constants.FLUX_POLLIN)
        on_input.start()
        self._handle.reactor_run()

    def _read_input(self) -> None:
        try:
            received = os.read(_STDIN, _READ_BYTES)
        except BlockingIOError:
            return
        if not received:
            self._handle.reactor_stop()
            return
        self._unread += received
        while len(self._unread) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._unread)[0]
            if len(self._unread) < end:
                return
            frame = json.loads(bytes(self._unread[LENGTH.size : end]).decode())
            del self._unread[:end]
            self._carry_out(frame)

    def _carry_out(self, frame: Any) -> None:
        try:
            getattr(self, "do_" + frame["do"])(frame)
        except OSError as error:
            if "id" in frame:
                self._fail(frame["id"], error)

    def do_rpc(self, frame: Any) -> None:
        future = send_rpc(self._handle, frame["topic"], frame["payload"], frame["rank"], frame["streaming"])

        def read() -> str:
            text = future.get_str()
            return json.dumps(text) if frame.get("as_text") or not text else text

        self._follow(frame["id"], future, read, frame["streaming"])

    def do_lookup(self, frame: Any) -> None:
        future = send_lookup(self._handle, frame["key"], frame["namespace"], frame["names"])
        self._follow(frame["id"], future, lambda: json.dumps(read_lookup(future, frame["names"])))

    def do_commit(self, frame: Any) -> None:
        future = send_commit(self._handle, frame["changes"], frame["namespace"], frame["sync"])
        self._follow(frame["id"], future, lambda: "null" if future.get() is None else "true")

    def do_submit(self, frame: Any) -> None:
        future = send_submit(self._handle, frame["jobspec"], frame["urgency"])
        self._follow(frame["id"], future, lambda: json.dumps(read_submit(future)))

    def do_register(self, frame: Any) -> None:
        future = checked(self._handle.service_register(frame["service"]))
        self._follow(frame["id"], future, lambda: "null" if future.get() is None else "true")

    def do_unregister(self, frame: Any) -> None:
        future = checked(self._handle.service_unregister(frame["service"]))
        self._follow(frame["id"], future, lambda: "null" if future.get() is None else "true")

    def do_cancel(self, frame: Any) -> None:
        if frame["stream"] in self._futures:
            send_cancel(self._handle, frame["topic"], self._futures[frame["stream"]])

    def do_drop(self, frame: Any) -> None:
        """The near side waits for this answer no longer."""
        if frame["future"] in self._futures:
            self._destroy(frame["future"])

    def do_take_user_role(self, _frame: Any) -> None:
        take_user_role(self._handle)

    def do_watch_requests(self, frame: Any) -> None:
        def forward(message: Any) -> None:
            self._asked_count += 1
            self._asked[self._asked_count] = message
            try:
                text = message.payload_str
            except (OSError, UnicodeError):
                text = False  # it is no text
            self._write(
                asked=self._asked_count,
                topic=frame["topic"],
                text=text,
                userid=credential(message, "userid"),
                owner=is_by_owner(message),
            )

        watcher = watch_requests(self._handle, frame["topic"], forward, frame["users"])
        watcher.start()
        self._watchers.append(watcher)

    def do_respond(self, frame: Any) -> None:
        message = self._asked.pop(frame["asked"])
        if "errno" in frame:
            self._handle.respond_error(message.handle, frame["errno"], frame["text"])
        else:
            self._handle.respond(message, frame["text"])

    def _follow(self, number: int, future: Any, read: Any, streaming: bool = False) -> None:
        """Send the near side what ``read`` finds, as JSON, each time the future has an answer."""

        def forward(_future: Any) -> None:
            try:
                answer = read()
            except (OSError, UnicodeError) as error:
                if not isinstance(error, OSError):
                    error = OSError(errno.EPROTO, "the answer is no text: %s" % error)
                self._fail(number, error)
                self._destroy(number)
                return
            self._write_raw("%d\n%s" % (number, answer))
            if number not in self._futures:
                return
            if streaming:
                future.reset()
            else:
                self._destroy(number)

        self._futures[number] = future
        future.then(forward)

    def _destroy(self, number: int) -> None:
        self._futures.pop(number).__exit__(None, None, None)

    def _fail(self, number: int, error: OSError) -> None:
        self._write(id=number, errno=error.errno or 0, text=str(error.strerror or error))

    def _write(self, **frame: object) -> None:
        self._write_raw(json.dumps(frame))

    def _write_raw(self, text: str) -> None:
        write_frame(text)


def write_frame(text: str) -> None:
    """Write one frame; wait until the near side has read enough. Raises ``OSError`` if it is gone."""
    data = text.encode("utf-8", "replace")
    rest = memoryview(LENGTH.pack(len(data)) + data)
    while rest:
        rest = rest[os.write(_STDOUT, rest) :]


def main(uri: str) -> int:
    """Serve one near side. Returns the exit status."""
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # its end is the end of its input, after the near side's last calls
    handle = None
    try:
        handle = open_handle(uri)
        where = sys.modules["flux"].__file__
        hello = {"protocol": PROTOCOL, "version": version(), "rank": handle.get_rank(), "where": where}
    except ImportError as error:
        hello = {"errno": 0, "text": "flux python cannot import the bindings: %s" % error}
    except OSError as error:
        hello = {"errno": error.errno or 0, "text": str(error.strerror or error)}
    write_frame(json.dumps(hello))
    if "protocol" not in hello:
        return 1
    try:
        FarSide(handle).run()
    except BrokenPipeError:
        return 0
    except OSError as error:
        write_frame(json.dumps({"lost": error.errno or 0, "text": str(error.strerror or error)}))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
