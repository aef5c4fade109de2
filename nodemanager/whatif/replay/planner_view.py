"""What the planner is shown of the engine's queue, ranks and machines: the same values as in the service."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nodemanager.core.facts import QueueSeen
from nodemanager.core.jobs import Job, JobId, JobRequest, JobState, RankAllocation
from nodemanager.core.nodes import CloudNode, FluxRank, Identity, ProviderId
from nodemanager.core.slots import Rank
from nodemanager.planner.state.frozen import replace
from nodemanager.planner.state.policy import Policy
from nodemanager.whatif.cloud.cloud import ReplayMachine
from nodemanager.whatif.replay.engine import ReplayEngine
from nodemanager.whatif.replay.sched_simple import QueuedJob


class PlannerView:
    """Converts the engine's state to the planner's values, and knows what it showed last."""

    def __init__(self, engine: ReplayEngine, policy: Policy) -> None:
        self._engine, self._policy = engine, policy
        self._seen: dict[int, FluxRank] = {}  # each rank at the latest look
        self._listed: dict[ProviderId, CloudNode] = {}
        self.machines: dict[ProviderId, ReplayMachine] = {}  # those listed

    # --- jobs ---

    def job(self, job: QueuedJob) -> Job:
        """A job as Flux's queue shows it."""
        start_at = self._engine.setup.start_at
        began_at = start_at + job.started_s if job.started_s is not None else None
        held = job.id in self._engine.scheduler.held
        return Job(
            id=job.id,
            urgency=0 if held else 16,
            priority=0 if held else 16,
            state=JobState.SCHED if job.started_s is None else JobState.RUN,
            request=JobRequest(job.shape, job.limit_s),
            submitted_at=start_at + job.submitted_s,
            userid=job.userid,
            allocations=tuple(RankAllocation(Rank(grant.rank), grant.cores, grant.gpus) for grant in job.grants),
            ends_at=began_at + job.limit_s if began_at is not None and job.limit_s else None,
            began_at=began_at,
        )

    def jobs_seen(self, ids: Sequence[JobId]) -> QueueSeen:
        """What the queue says of waiting jobs after their urgency was changed."""
        scheduler = self._engine.scheduler
        waiting = {job.id: job for job in (*scheduler.queue, *scheduler.held.values())}
        return QueueSeen(self._engine.now_s, tuple(self.job(waiting[id_]) for id_ in ids if id_ in waiting))

    # --- ranks ---

    def look_at(self, rank: int) -> FluxRank:
        """A rank as it is now. The next questions about it are answered by this look."""
        seen = self._seen[rank] = self.rank(rank)
        return seen

    def is_used(self, rank: int) -> bool:
        """Whether a job holds cores there and has not given them back."""
        return self._engine.scheduler.ranks[rank].jobs > 0 and rank not in self._engine.given_back

    def has_joined(self, rank: int) -> bool:
        """Whether an expected node has come up since the latest look. The jobs it is for are planned on it."""
        return self._engine.scheduler.ranks[rank].up and not self._seen[rank].online

    def stays_offline(self, rank: int) -> bool:
        """Whether the rank was and is offline. That its slot became free matters only to waiting jobs."""
        machine = self._engine.machines.get(rank)
        return not self._seen[rank].online and not (machine is not None and machine.online)

    def rank(self, rank: int) -> FluxRank:
        """A rank as it is now."""
        capacity, machine = self._engine.scheduler.ranks[rank], self._engine.machines.get(rank)
        ended_s = self._engine.last_ended_s.get(rank)
        online = machine is not None and machine.online
        known = self._seen.get(rank)
        return replace(
            known or FluxRank(Rank(rank), capacity.host, online, capacity.cores, capacity.gpus),
            online=online,
            cores_free=capacity.cores_free if capacity.up else 0,  # 0 if it was given back: its job holds it whole
            gpus_free=capacity.gpus_free if capacity.up else 0,
            allocated=self.is_used(rank),
            given_back=self._engine.given_back.get(rank),
            schedulable=capacity.up,
            drain_reason=self._engine.drained.get(rank),
            last_job_ended_at=None if ended_s is None else self._engine.setup.start_at + ended_s,
        )

    # --- machines ---

    def cloud_node(self, machine: ReplayMachine) -> CloudNode:
        """A machine as the provider lists it."""
        known = self._listed.get(machine.provider_id)
        if known is not None and known.state is machine.state:
            return known
        node = CloudNode(
            machine.provider_id,
            machine.state,
            known.identity if known is not None else self._identity(machine),
            created_at=self._engine.setup.start_at + machine.created_s,
            died_because=machine.died_because,
            market=machine.node_type.market,
            size=machine.node_type.size,
        )
        self.machines[machine.provider_id] = machine
        self._listed[machine.provider_id] = node
        return node

    def _identity(self, machine: ReplayMachine) -> Identity:
        policy, node_type = self._policy, machine.node_type
        return Identity(
            policy.cluster, policy.cluster_uuid, machine.launch, machine.slot, node_type.name, node_type.made_from
        )

    def forget_all_but(self, machines: Iterable[ReplayMachine]) -> None:
        """Forget the machines that the provider no longer lists."""
        shown = {machine.provider_id for machine in machines}
        for forgotten in self._listed.keys() - shown:
            del self._listed[forgotten], self.machines[forgotten]
