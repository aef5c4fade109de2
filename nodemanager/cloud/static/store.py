"""Which host serves which launch, in one file. Any process may open it; one lock protects it.

    STATE/lock         flock(2), held while the file is read and changed, never while a command runs
    STATE/hosts.json   the uses of hosts, in order of creation, and which hosts could not be woken

A use is written before its host is woken. So after a crash at any time a list shows each host that may be awake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from nodemanager.cloud.common.files import held_lock, replace_file
from nodemanager.core.nodes import FailureKind, Identity
from nodemanager.core.ports import CloudError

SHOWN_AFTER_END_S = 600.0


class Phase(StrEnum):
    """How far a use of a host is."""

    WAKING = "waking"  # its command runs, or was cut off
    WOKEN = "woken"  # its command ended well; the probe has not found the host awake yet
    AWAKE = "awake"
    FAILED = "failed"  # its wake failed, and nothing proves that the host is asleep
    SLEEPING = "sleeping"  # its sleep command ended well; the probe has not found the host asleep yet
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class HostUse:
    """One host serving one launch. A use may outlive the manager that wrote it: new fields need defaults."""

    id: str
    host: str
    identity: Identity
    size: str
    created_at: FiniteFloat
    phase: Phase = Phase.WAKING
    waking_until_at: FiniteFloat = 0.0  # until then a wake command may still wake it, also after a crash
    asleep_looks: int = 0  # how many probes in a row found it asleep
    asleep_since_at: FiniteFloat = 0.0  # when the first of them did
    ended_at: FiniteFloat = 0.0
    why_ended: str = ""

    def serves(self, identity: Identity) -> bool:
        """Whether it is the use of the same launch of the same cluster."""
        mine = self.identity
        return (mine.cluster_uuid, mine.launch) == (identity.cluster_uuid, identity.launch)


@dataclass(frozen=True, slots=True)
class Uses:
    """All uses, in order of creation. ``failed_at``: when a host could last not be woken or used."""

    count: int = 0  # of all uses so far
    uses: tuple[HostUse, ...] = ()
    failed_at: Mapping[str, float] = field(default_factory=dict)

    def find(self, wanted: Callable[[HostUse], bool]) -> HostUse | None:
        """Return the first use that is wanted; None if there is none."""
        return next((use for use in self.uses if wanted(use)), None)

    def with_use(self, changed: HostUse) -> Uses:
        """Return the uses with one of them changed."""
        return replace(self, uses=tuple(changed if use.id == changed.id else use for use in self.uses))

    def without_old(self, now_at: float) -> Uses:
        """Forget the uses that ended long ago."""
        old = now_at - SHOWN_AFTER_END_S
        kept = tuple(use for use in self.uses if use.phase is not Phase.ENDED or use.ended_at > old)
        return self if len(kept) == len(self.uses) else replace(self, uses=kept)


class HostStore:
    """The uses of one folder's hosts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = directory / "lock"
        self._file = directory / "hosts.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. Raises :class:`CloudError` if the files cannot be read or written."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with held_lock(self._lock):
                yield
        except OSError as error:
            raise CloudError(FailureKind.TRANSIENT, f"{self._file}: {error}") from error

    def read(self) -> Uses:
        """Read all uses. Raises :class:`CloudError` if the file is damaged: that is not "no uses"."""
        try:
            return _USES.validate_json(self._file.read_bytes())
        except FileNotFoundError:
            return Uses()
        except ValidationError as error:
            raise CloudError(
                FailureKind.TRANSIENT,
                f"{self._file} cannot be read: restore it, or put all hosts to sleep and remove it",
            ) from error

    def write(self, uses: Uses) -> Uses:
        """Write all uses, and return them."""
        replace_file(self._file, _USES.dump_json(uses).decode())
        return uses


_USES: TypeAdapter[Uses] = TypeAdapter(Uses)
