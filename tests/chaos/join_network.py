"""Nodes that join by ticket in virtual time: the production client and service over a network with faults.

A client may die between any two of its effects, and is started again with its saved state. So is the service. Some
machines have a twin that presents the same ticket. A launch may admit only one machine, a slot may have only one
broker, and no machine may start a broker for a slot that it was not given.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from nodemanager.core.facts import JoinFact, NodeReported
from nodemanager.core.nodes import CloudNode, Identity, JoinPhase, LaunchId, ProviderId, Roster, stamp_of
from nodemanager.core.ports import JoinError, JoinPort
from nodemanager.core.slots import CloudName, Misfit, NodeType, SlotName, TypeName
from nodemanager.join.admission import AdmissionRules, Answer, Granted, JoinAdmission
from nodemanager.join.exchange import RosterUnreadableError
from nodemanager.join.flux_node_join import CannotJoin, JoinClient, JoinRefused, JoinUnreachable
from nodemanager.join.identity.proof import ProvenInstance
from nodemanager.join.key_material import Material
from nodemanager.join.ticket_store import TicketStore
from nodemanager.join.tickets import SiteKey
from nodemanager.simulation.cloud.provider import SimulatedProvider
from nodemanager.simulation.flux.instance import SimulatedFlux
from nodemanager.simulation.time.world import World
from tests.chaos.run.grants import GrantChecks
from tests.chaos.run.invariants import Invariants, Violation
from tests.chaos.run.site import CLUSTER_UUID, one_provider, types_of
from tests.chaos.scenario import Scenario

SILENCE_MAX_S = 120.0
RESTART_S = (0.5, 20.0)  # until a client or service that died is started again
TWIN_OF = "twin of "  # begins the name of a copy of a machine
KEY = SiteKey(bytes(32))
RULES = AdmissionRules(head_host="head", head_address="10.0.0.1", renew_s=10.0, orphan_grace_s=120.0)


class Died(BaseException):
    """SIGKILL between two effects. Only the code that starts processes may catch it."""


@dataclass
class JoinFaults:
    """``p_`` is a probability for each request, effect or machine."""

    p_lost_request: float = 0.0
    p_lost_reply: float = 0.0
    p_client_dies: float = 0.0
    p_service_dies: float = 0.0
    p_post_fails: float = 0.0
    p_twin: float = 0.0
    p_short: float = 0.0  # a machine has only three quarters of its type's cores


@dataclass
class SimulatedExchange:
    """The roster that the manager posted last."""

    world: World
    roster: Roster | None = None
    posted_s: float = 0.0

    def current(self) -> tuple[Roster, float]:
        if self.roster is None:
            raise RosterUnreadableError("no manager has written one yet")
        return self.roster, self.world.now_s - self.posted_s


class FragileTicketStore(TicketStore):
    """A ticket store whose service may die before or after each write."""

    def __init__(self, dies: Callable[[], None]) -> None:
        super().__init__(":memory:")
        self._dies = dies

    def mark_used(self, launch: LaunchId, nonce_hash: str, source: str, now_at: float) -> str:
        self._dies()
        user = super().mark_used(launch, nonce_hash, source, now_at)
        self._dies()
        return user

    def keep_report(self, report: NodeReported) -> None:
        self._dies()
        super().keep_report(report)
        self._dies()


class SimulatedJoinService:
    """The join service, and every machine that uses it."""

    def __init__(
        self,
        world: World,
        flux: SimulatedFlux,
        providers: Mapping[CloudName, SimulatedProvider],
        node_types: Sequence[NodeType],
        *,
        batches: bool = False,
        one_provider: bool = False,
    ) -> None:
        self.world = world
        self.batches = batches  # nodes that one call created have the same ticket
        self.one_provider = one_provider  # the clouds are accounts of one provider, which vouches for all instances
        self.flux = flux
        self.providers = providers
        self.grants = GrantChecks(providers, Invariants.require)
        self.faults = JoinFaults()
        self.draws: Random = world.draws_for("joining")
        self.exchange = SimulatedExchange(world)
        self.machines: list[SimulatedMachine] = []
        self.joined_by: dict[LaunchId, str] = {}
        self.broker_starts = 0
        self.client_deaths = 0
        self.refusals = 0
        self.power_offs = 0
        self.short_machines = 0
        self.types = {node_type.name: node_type for node_type in node_types}
        self._ticket_store = FragileTicketStore(self._service_may_die)
        self._admission: JoinAdmission | None = self._new_admission()

    def close(self) -> None:
        """Close the service's ticket store."""
        self._ticket_store.close()

    # --- the service ---

    def _new_admission(self) -> JoinAdmission:
        return JoinAdmission(
            KEY,
            RULES,
            self.exchange,
            lambda: MATERIAL,
            self._ticket_store,
            self.world.wall_at,
            instance_in=self._proven_instance,
        )

    def _proven_instance(self, document: str, _: str) -> ProvenInstance:
        cloud, _, instance = document.partition(" ")
        return ProvenInstance(ProviderId(instance), [*self.providers] if self.one_provider else [CloudName(cloud)])

    def _service_may_die(self) -> None:
        if self.happens(self.faults.p_service_dies):
            raise Died

    def request(self, what: str, body: Mapping[str, Any], source: str) -> dict[str, Any]:
        """Send a client's request over the network and return the answer.

        Raises JoinUnreachable for a network fault, JoinRefused for a refusal.
        """
        if self._admission is None or self.happens(self.faults.p_lost_request):
            raise JoinUnreachable("no answer")
        try:
            answer = self._decide(self._admission, what, body, source)
        except Died:
            self._admission = None
            self.world.after(self.draws.uniform(*RESTART_S), self._start_service)
            raise JoinUnreachable("the connection was closed") from None
        if isinstance(answer, Granted) and what in ("redeem", "redeem-batch"):
            instance = ProviderId(source.removeprefix(TWIN_OF))
            self.grants.note_grant(source, instance, answer.entry, batch=str(body.get("batch", "")))
        if self.happens(self.faults.p_lost_reply):
            raise JoinUnreachable("the reply was lost")
        if isinstance(answer, Granted):
            return dict(json.loads(json.dumps(answer.body)))
        self.refusals += 1
        raise JoinRefused(str(answer.code))

    def _start_service(self) -> None:
        self._admission = self._new_admission()

    @staticmethod
    def _decide(admission: JoinAdmission, what: str, body: Mapping[str, Any], source: str) -> Answer:
        launch, instance = LaunchId(body["launch"]), body["instance"]
        match what:
            case "redeem-batch":
                return admission.redeem_batch(
                    body["batch"], body["ticket"], body["nonce"], body["identity"], source, instance
                )
            case "redeem":
                return admission.redeem(launch, body["ticket"], body["nonce"], source, instance)
            case "fetch":
                return admission.fetch(launch, body["key"], source, instance)
            case "renew":
                return admission.renew(launch, body["key"], body["hosts_digest"], source, instance)
            case _:
                return admission.report(launch, body["key"], JoinPhase(body["phase"]), body["detail"], source)

    def port(self) -> JoinPort:
        """Return the join port of a new manager process."""
        return SimulatedJoinPort(self)

    def reports(self, after: int) -> tuple[tuple[int, JoinFact], ...]:
        return self._ticket_store.reports(after)

    # --- machines ---

    def on_node_booted(self, cloud: CloudName, node: CloudNode) -> None:
        """For ``SimulatedProvider.on_boot``: start the machine's client, and that of its twin if it has one."""
        if node.identity is None:
            return
        names = [str(node.provider_id)]
        if self.happens(self.faults.p_twin):
            names.append(f"{TWIN_OF}{node.provider_id}")
        for name in names:
            machine = SimulatedMachine(
                self, name, cloud, node.identity.launch, node.identity.slot, self.hardware_of(node.identity)
            )
            self.machines.append(machine)
            self.world.after(self.draws.uniform(0.0, 2.0), machine.start)

    def hardware_of(self, identity: Identity) -> dict[str, int]:
        """Return the hardware that a machine measures."""
        had = self.types[identity.type_name]
        cores = had.cores * 3 // 4 if self.happens(self.faults.p_short) else had.cores
        self.short_machines += cores < had.cores
        return {"cores": cores, "threads": cores, "gpus": had.gpus, "memory_bytes": had.memory_bytes}

    def on_node_ended(self, node: CloudNode) -> None:
        """For ``SimulatedProvider.on_end``: the machine loses power. Its twin runs on."""
        for machine in self.machines:
            if machine.name == node.provider_id:
                machine.lose_power()

    def stop_brokers(self) -> None:
        """End every broker, as the end of rank 0 does. Only its client starts a broker again."""
        for machine in self.machines:
            machine.broker_ends()

    def happens(self, probability: float) -> bool:
        return probability > 0 and self.draws.random() < probability


MATERIAL = Material({"hosts": []}, "certificate", "0.88.0", 0)


@dataclass
class SimulatedJoinPort:
    """``JoinPort`` of one manager process."""

    joins: SimulatedJoinService
    read_until: int = 0

    def post(self, roster: Roster, wall_at: float) -> None:
        del wall_at
        if self.joins.happens(self.joins.faults.p_post_fails):
            raise JoinError("the disk is full")
        self.joins.exchange.roster = roster
        self.joins.exchange.posted_s = self.joins.world.now_s

    def reports(self) -> tuple[JoinFact, ...]:
        rows = self.joins.reports(self.read_until)
        if rows:
            self.read_until = rows[-1][0]
        return tuple(report for _, report in rows)


@dataclass
class SimulatedMachine:
    """The machine that a production client runs on. The client may die at each of its calls."""

    joins: SimulatedJoinService
    name: str
    cloud: CloudName
    launch: LaunchId
    slot: SlotName
    hardware: dict[str, int]
    saved_state: dict[str, Any] = field(default_factory=dict)
    powered: bool = True
    broker: bool = False
    notice: str = ""  # the provider's announcement that it will reclaim the machine
    client_life: int = 0  # grows when the client starts, dies or powers off: older scheduled steps are dropped

    def reclaim_notice(self) -> str:
        return self.notice

    # --- the client's process ---

    def start(self) -> None:
        if not self.powered:
            return
        self.client_life += 1
        try:
            client = self._new_client()
        except Died:
            self._die()
            return
        self._step(client, self.client_life)

    def _new_client(self) -> JoinClient:
        if not self.joins.batches:
            return JoinClient(self, self.launch, KEY.ticket(self.launch), SILENCE_MAX_S)
        batch = stamp_of(self.launch, self.slot)
        return JoinClient(self, "", KEY.batch_ticket(batch), SILENCE_MAX_S, batch)

    def identity(self, purpose: str) -> str:
        """Return what the provider vouches for. A twin shows that of the machine it was copied from."""
        del purpose
        return f"{self.cloud} {self.name.removeprefix(TWIN_OF)}"

    def _step(self, client: JoinClient, life: int) -> None:
        if not self.powered or life != self.client_life:
            return
        try:
            wait_s = client.step()
        except Died:
            self._die()
            return
        if wait_s is not None:
            self.joins.world.after(wait_s, lambda: self._step(client, life))

    def _die(self) -> None:
        """Kill the client. Its broker is in the same control group and ends with it."""
        self.joins.client_deaths += 1
        self.client_life += 1
        self._drop_broker(lost=True)
        self.joins.world.after(self.joins.draws.uniform(*RESTART_S), self.start)

    def lose_power(self) -> None:
        self.powered = False
        self._drop_broker(lost=True)

    def broker_ends(self) -> None:
        self._drop_broker(lost=True)

    def _drop_broker(self, *, lost: bool) -> None:
        if self.broker:
            self.broker = False
            self.joins.flux.broker_down(self.slot, lost=lost, machine=self.name)

    def _may_die(self) -> None:
        if self.joins.happens(self.joins.faults.p_client_dies):
            raise Died

    # --- the interface that the client uses ---

    def now_s(self) -> float:
        return self.joins.world.now_s

    def uniform(self, low: float, high: float) -> float:
        return self.joins.draws.uniform(low, high)

    def nonce(self) -> str:
        return f"{self.joins.draws.getrandbits(256):064x}"

    def instance(self) -> str:
        return hashlib.sha256(f"{self.name} {self.client_life}".encode()).hexdigest()

    def is_a_copy(self) -> bool:
        return False

    def log(self, text: str) -> None:
        del text

    def measured(self) -> dict[str, int]:
        return self.hardware

    def load(self) -> dict[str, Any]:
        return dict(self.saved_state)

    def save(self, state: dict[str, Any]) -> None:
        self._may_die()
        self.saved_state = dict(state)
        if state.get("launch_in_batch", "") not in ("", self.launch):
            raise Violation(f"{self.name}, made for {self.launch}, was let in as {state['launch_in_batch']}")
        if state["lease_key"]:
            holder = self.joins.joined_by.setdefault(self.launch, self.name)
            if holder != self.name:
                raise Violation(f"{self.launch} was let in twice: {holder} and {self.name}")
        self._may_die()

    def end_survivors(self) -> str:
        return ""  # a simulated job ends with its broker

    def write_hosts(self, hosts: Mapping[str, str]) -> None:
        del hosts

    def ask(self, what: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self._may_die()
        answer = self.joins.request(what, body, self.name)
        self._may_die()
        return answer

    def check(self, given: Mapping[str, Any]) -> None:
        if given["slot"] != self.slot:
            raise CannotJoin(f"given {given['slot']}, the slot of another")

    def start_broker(self, given: Mapping[str, Any]) -> None:
        del given
        self._may_die()
        record = self.joins.flux.leases.get(self.slot)
        if record is None or record.id != self.launch:
            raise Violation(f"{self.name} starts a broker as {self.slot}, which {record} holds, not {self.launch}")
        other = self.joins.flux.machine_of(self.slot)
        if other not in (None, self.name):
            raise Violation(f"{self.name} puts {other} out of {self.slot}")
        self.broker = True
        self.joins.broker_starts += 1
        self.joins.flux.broker_up(self.slot, self.name)
        self._may_die()

    def broker_status(self) -> str | None:
        if self.broker and self.joins.flux.machine_of(self.slot) == self.name:
            return None
        self.broker = False
        return "status 0"

    def broker_tail(self) -> str:
        return ""

    def stop_broker(self) -> None:
        if self.broker and self.job_runs():
            raise Violation(f"{self.name} stops the broker of {self.slot} under a job")
        self._drop_broker(lost=False)

    def job_runs(self) -> bool:
        if self.broker_status() is not None:
            return False
        record = self.joins.flux.leases.get(self.slot)
        return record is not None and any(grant.rank == record.rank for _, grant in self.joins.flux.held_grants())

    def drain(self, reason: str) -> None:
        record = self.joins.flux.leases.get(self.slot)
        if self.broker_status() is None and record is not None:
            self.joins.flux.drain(record.rank, reason)

    def power_off(self) -> None:
        self.joins.power_offs += 1
        self.powered = False
        self.client_life += 1
        self.joins.providers[self.cloud].kill(ProviderId(self.name), "powered off")


@dataclass
class JoinScenario(Scenario):
    """A run in which every node joins by ticket, with faults at every step of joining."""

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = replace(self.policy.rules, misfit=list(Misfit)[self.script.seed % len(Misfit)])
        self.policy = replace(self.policy, rules=rules)
        self.invariants.policy = self.policy
        batches = self.policy.calls.nodes_per_create > 1
        providers = dict(zip(self.policy.cloud_names, self.invariants.providers, strict=True))
        self.joins = SimulatedJoinService(
            self.world,
            self.flux,
            providers,
            types_of(self.script),
            batches=batches,
            one_provider=one_provider(self.script),
        )
        for cloud, provider in providers.items():
            provider.on_boot = partial(self.joins.on_node_booted, cloud)
            provider.on_end = self.joins.on_node_ended

    def _close_files(self) -> None:
        super()._close_files()
        self.joins.close()

    def join_port(self) -> JoinPort | None:
        return self.joins.port()

    def turn_join_knob(self, name: str, probability: float) -> None:
        setattr(self.joins.faults, f"p_{name}", probability)

    def give_notice(self, provider_id: ProviderId) -> None:
        for machine in self.joins.machines:
            if machine.name == provider_id:
                machine.notice = "to be taken back"

    def reconnected(self, slot: SlotName, machine: str) -> None:
        """Do nothing: the client finds that its broker ended, and starts it again."""

    def restart_rank_0(self, down_s: float) -> None:
        super().restart_rank_0(down_s)
        self.joins.stop_brokers()

    def resize(self, added: Mapping[SlotName, TypeName], down_s: float) -> None:
        super().resize(added, down_s)
        self.joins.stop_brokers()

    def _check_end(self) -> None:
        super()._check_end()
        self.joins.grants.check_end(CLUSTER_UUID, self.invariants.planted)

    def _make_peace(self) -> None:
        super()._make_peace()
        self.joins.faults = JoinFaults()

    def _all_done(self) -> bool:
        return super()._all_done() and not any(machine.broker for machine in self.joins.machines)
