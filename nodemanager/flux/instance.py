"""A real Flux instance: the port and the watch on it, which share one claim."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nodemanager.core.ports import Clock, FluxError
from nodemanager.core.slots import NodeType
from nodemanager.flux import bindings
from nodemanager.flux.claim import Claim, Status
from nodemanager.flux.port import RealFluxPort
from nodemanager.flux.watch import RealFluxWatch


class RealFlux:
    """One instance, one manager.

    ``uri`` is what ``flux_open`` takes and must lead to rank 0; ``""`` is the instance that encloses us. Raises
    ``BindingsMissing``, also when the instance runs another version; one that is away is met later. ``folder``,
    whose conf.d is rank 0's configuration, and ``node_types`` are needed where the division of the slots is to be
    changed. ``status`` is what ``node-manager.status`` answers, as JSON; it is asked from a thread of its own.
    ``measures``: whether ports find out what the machines of ranks really have. ``flub``: ranks are given out
    by Flux.
    """

    def __init__(
        self,
        uri: str,
        cluster_uuid: str,
        clock: Clock,
        *,
        folder: Path | None = None,
        node_types: Sequence[NodeType] = (),
        timeout_s: float = 5.0,
        status: Status = dict,
        measures: bool = False,
        flub: bool = False,
    ) -> None:
        bindings.load()
        with suppress(FluxError), bindings.connection(uri):
            pass  # every connection looks at the version; a wrong one is best said before anything is started
        self._uri = uri
        self._cluster_uuid = cluster_uuid
        self._clock = clock
        self._timeout_s = timeout_s
        self._folder = folder
        self._node_types = tuple(node_types)
        self._measures = measures
        self._flub = flub
        self._claim = Claim(uri, timeout_s=timeout_s, status=status)

    def port(self) -> RealFluxPort:
        """For one thread, which opens its handle by its first call."""
        return RealFluxPort(
            self._uri,
            self._cluster_uuid,
            self._claim,
            folder=self._folder,
            node_types=self._node_types,
            timeout_s=self._timeout_s,
            measures=self._measures,
            flub=self._flub,
        )

    def watch(self, *, probe_s: float = 10.0, relist_s: float = 60.0) -> RealFluxWatch:
        return RealFluxWatch(self._uri, self._clock, probe_s=probe_s, relist_s=relist_s, timeout_s=self._timeout_s)

    def close(self) -> None:
        """Give up the name, if it is held. The end of the process does so too."""
        self._claim.release()
