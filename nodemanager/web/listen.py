"""The address that the service listens on: a Unix socket for its owner only, or TCP if the site asks for it."""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

BACKLOG = 64
SOCKET_NAME = "web.sock"  # in the site's state_dir
UNIX_PATH_MAX = 107  # bytes, unix(7)


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A socket in the file system."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


ListenAddress = UnixSocket | TcpAddress


def parse_listen(listen: str) -> ListenAddress | None:
    """Parse ``[Web] listen``, as the site completed it. None if nothing is to be served."""
    if listen == "off":
        return None
    if listen.startswith("unix:"):
        return UnixSocket(Path(listen.removeprefix("unix:")))
    parts = urlsplit(f"//{listen}")
    return TcpAddress(parts.hostname or "", parts.port or 0)


def listen_addresses(listen: str, state_dir: Path) -> tuple[ListenAddress, ...]:
    """Every address that the service listens on, the best for its owner first.

    Beside a TCP address there is always the Unix socket, which no other user can block. It is left out if its path
    would be too long.
    """
    place = parse_listen(listen)
    if place is None:
        return ()
    own = UnixSocket(state_dir / SOCKET_NAME)
    if isinstance(place, TcpAddress) and len(os.fsencode(own.path)) <= UNIX_PATH_MAX:
        return own, place
    return (place,)


class CannotListen(Exception):
    """The service cannot listen now. The message says why."""


@dataclass(slots=True)
class BoundSocket:
    """A bound socket, and for a Unix socket the file descriptor of its lock."""

    socket: socket.socket
    lock: int | None = None

    def close(self) -> None:
        self.socket.close()
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def listen(place: ListenAddress) -> BoundSocket:
    """Bind and listen. Raises ``CannotListen`` if the address is in use or cannot be used."""
    try:
        return _listen_unix(place.path) if isinstance(place, UnixSocket) else _listen_tcp(place)
    except OSError as error:
        raise CannotListen(f"{place}: {error.strerror or error}") from error
    except UnicodeError as error:
        raise CannotListen(f"{place}: not a valid host name: {error}") from error


def _listen_tcp(place: TcpAddress) -> BoundSocket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        place.host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return BoundSocket(listening)


def _listen_unix(path: Path) -> BoundSocket:
    """Listen on a Unix socket. A lock file keeps a second service of the site out.

    The lock ends with its process, while the socket's file may outlive it and is then replaced.
    """
    if len(os.fsencode(path)) > UNIX_PATH_MAX:
        raise CannotListen(
            f"unix:{path}: a socket's path may have at most {UNIX_PATH_MAX} bytes: set [Web] listen = unix:PATH"
        )
    if path.exists() and not path.is_socket():
        raise CannotListen(f"unix:{path}: a file that is not a socket exists there; it is left alone")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except BlockingIOError as error:
        os.close(lock)
        raise CannotListen(f"unix:{path}: another service of this site listens there") from error
    except BaseException:
        os.close(lock)
        raise
    try:
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        path.chmod(0o600)  # before anybody can connect
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        os.close(lock)
        raise
    return BoundSocket(listening, lock)
