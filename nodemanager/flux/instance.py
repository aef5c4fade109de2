"""A real Flux instance: its ports and its watch, which share one claim."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from nodemanager.core.jobs import JobEnd, JobId
from nodemanager.core.ports import Clock, FluxError, Info
from nodemanager.core.slots import NodeType, TypeName
from nodemanager.flux import bindings
from nodemanager.flux.claim import Claim, Floor
from nodemanager.flux.parse.job_end import read_job_end
from nodemanager.flux.port import RealFluxPort
from nodemanager.flux.watch import RealFluxWatch


class RealFlux:
    """One manager's access to one instance.

    ``uri``: an argument of ``flux_open`` that leads to rank 0; ``""`` means the enclosing instance. ``folder``: its
    conf.d is rank 0's configuration. ``folder`` and ``node_types`` are needed to change the types of slots.
    ``info``: the answers to users of the instance who ask the service ``node-manager-info``. ``floor``: the answer
    to ensembles that ask for nodes.
    ``types_with_data``: looks show the jobs whose data may still be on nodes of these types.
    ``early_release``: looks show the ranks that running instances have given back.
    ``measures``: ports read the hardware of machines. ``flub``: Flux assigns the ranks. ``leader_runs_jobs``: looks
    show rank 0 too, as a node that is not ours.

    Raises ``BindingsMissing``, also if the instance runs another version. An unreachable instance raises only
    later, at the first call.
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
        info: Info | None = None,
        floor: Floor | None = None,
        measures: bool = False,
        flub: bool = False,
        leader_runs_jobs: bool = False,
        types_with_data: Iterable[TypeName] = (),
        early_release: bool = False,
    ) -> None:
        with suppress(FluxError), bindings.connection(uri):
            pass  # every connection checks the version; a wrong one should fail before anything is started
        self._uri = uri
        self._cluster_uuid = cluster_uuid
        self._clock = clock
        self._timeout_s = timeout_s
        self._folder = folder
        self._node_types = tuple(node_types)
        self._measures = measures
        self._flub = flub
        self._leader_runs_jobs = leader_runs_jobs
        self._types_with_data = frozenset(types_with_data)
        self._early_release = early_release
        self._claim = Claim(uri, timeout_s=timeout_s, info=info, floor=floor)
        self._one_job_end = threading.Lock()

    def port(self) -> RealFluxPort:
        """Make a port for one thread. Its first call opens the handle."""
        return RealFluxPort(
            self._uri,
            self._cluster_uuid,
            self._claim,
            folder=self._folder,
            node_types=self._node_types,
            timeout_s=self._timeout_s,
            measures=self._measures,
            flub=self._flub,
            leader_runs_jobs=self._leader_runs_jobs,
            types_with_data=self._types_with_data,
            early_release=self._early_release,
        )

    def watch(self, *, probe_s: float = 10.0, relist_s: float = 60.0) -> RealFluxWatch:
        """Make a watch with its own connection and thread."""
        return RealFluxWatch(self._uri, self._clock, probe_s=probe_s, relist_s=relist_s, timeout_s=self._timeout_s)

    @property
    def claim(self) -> Claim:
        """The hold on the name, for other ports that act on the instance."""
        return self._claim

    def job_end(self, job: JobId) -> JobEnd | None:
        """Read from Flux how a job ended; None if Flux does not say. Any thread may ask, one at a time."""
        if not self._one_job_end.acquire(timeout=self._timeout_s):
            return None
        try:
            with bindings.connection(self._uri) as handle:
                lookup = {"id": int(job), "keys": ["eventlog"], "flags": 0}
                answer = bindings.ask(handle, "job-info.lookup", lookup, timeout_s=self._timeout_s)
            return read_job_end(answer["eventlog"])
        except (FluxError, ValueError):
            return None
        finally:
            self._one_job_end.release()

    def close(self) -> None:
        """Release the name if it is held. The end of the process also releases it."""
        self._claim.release()
