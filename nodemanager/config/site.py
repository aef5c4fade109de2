"""A site: one cluster's settings, complete and consistent. ``load.py`` makes it of ``site.ini``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import SecretStr

from nodemanager.config import clouds as several
from nodemanager.config.clouds import CloudSection
from nodemanager.config.provider import ProviderRules, rules_of
from nodemanager.config.text.ini import Fault
from nodemanager.config.text.settings import (
    BudgetSettings,
    Burst,
    CloudSettings,
    DelegateTo,
    DisruptionSettings,
    EnsembleSettings,
    FluxSettings,
    JoinMethod,
    JoinSettings,
    JournalSettings,
    LimitsSettings,
    Mode,
    NodeSettings,
    NotifySettings,
    PeerSettings,
    PolicySettings,
    ScheduleSettings,
    SimulationSettings,
    TimingSettings,
    Viewers,
    WebSettings,
)
from nodemanager.core.jobs import QueuePolicy, Unserved
from nodemanager.core.notation import format_fsd
from nodemanager.core.slots import (
    DEFAULT_CLOUD,
    CloudName,
    NodePlacement,
    NodeType,
    SlotName,
    TypeName,
)

__all__ = [
    "Burst",
    "ConfigError",
    "DelegateTo",
    "Fault",
    "JoinMethod",
    "Mode",
    "Site",
    "name_file",
    "site_warnings",
    "uuid_file",
]


INSTANCES_AT_ONCE = 1000  # by batches, as EC2 allows by default
BATCHES_PER_S = 2.0  # requests for instances. Google allows more, but 10 bulk inserts at a time
BATCHES_AT_ONCE = 5.0


class ConfigError(Exception):
    """The site cannot be used. ``faults`` lists everything that is wrong, in the order of the lines."""

    def __init__(self, faults: tuple[Fault, ...]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Site:
    """One cluster's settings, complete and consistent. Paths are absolute."""

    path: Path
    cluster: str
    cluster_uuid: str  # "" until ``init`` creates one
    state_dir: Path
    mode: Mode
    flux: FluxSettings
    cloud: CloudSettings
    credentials: Mapping[str, SecretStr]
    limits: LimitsSettings
    timing: TimingSettings
    policy: PolicySettings
    join: JoinSettings
    budget: BudgetSettings
    disruption: DisruptionSettings
    web: WebSettings
    journal: JournalSettings
    notify: NotifySettings
    simulation: SimulationSettings
    node_types: tuple[NodeType, ...]
    networks: Mapping[TypeName, str]  # of each type; "" leaves the choice to the provider
    nodes: Mapping[TypeName, NodeSettings]  # as written, for what a provider needs in addition to a NodeType
    peers: Mapping[str, PeerSettings]  # other instances that jobs may run in
    ensembles: Mapping[str, EnsembleSettings]  # that the service runs
    schedules: Mapping[str, ScheduleSettings]  # in the order of the file
    currency: str = ""  # of every amount that people see; decides nothing
    cloud_name: CloudName = DEFAULT_CLOUD
    # Of several clouds, the site as if each were the only one; then the fields above describe the first. {}: one.
    parts: Mapping[CloudName, Site] = field(default_factory=dict)

    @property
    def by_cloud(self) -> Mapping[CloudName, Site]:
        """The site of each cloud, with only that cloud's settings, credentials and node types."""
        if not self.parts:
            return {self.cloud_name: self}
        return {name: replace(part, cluster_uuid=self.cluster_uuid) for name, part in self.parts.items()}

    @property
    def rules(self) -> ProviderRules:
        """What the cloud's provider declares."""
        return rules_of(self.cloud)

    @property
    def cloud_section(self) -> CloudSection:
        """The section of the cloud, as it is in the file."""
        return several.section_of(self.cloud_name)

    @property
    def cloud_dir(self) -> Path:
        """The folder of the nodes of a local cloud."""
        return self.state_dir / ("cloud" if self.cloud_name == DEFAULT_CLOUD else f"cloud-{self.cloud_name}")

    @property
    def slots(self) -> tuple[SlotName, ...]:
        """Every slot, in the order of the ranks that ``init`` gives them."""
        return tuple(slot for node_type in self.node_types for slot in node_type.slots)

    @property
    def secrets(self) -> Mapping[str, str]:
        """The credentials in plain text, for the provider only. Never show, log or store them."""
        return {key: secret.get_secret_value() for key, secret in self.credentials.items()}

    @property
    def needs_groups(self) -> bool:
        """Whether nodes of any type are created in placement groups."""
        return any(node_type.placement is not NodePlacement.ANYWHERE for node_type in self.node_types)

    @property
    def observed_types(self) -> frozenset[TypeName]:
        """The node types in observe mode: the manager only shows what it would do."""
        return frozenset(name for name, node in self.nodes.items() if (node.mode or self.mode) is Mode.OBSERVE)

    @property
    def acts(self) -> bool:
        """Whether the manager acts at all, by ``[Site] mode`` or for at least one node type by its own ``mode``."""
        return self.mode is Mode.ACT or len(self.observed_types) < len(self.nodes)

    @property
    def delegates(self) -> bool:
        """Whether jobs of this instance may run in another one."""
        policy = self.policy
        return policy.burst is not Burst.NEVER and (bool(self.peers) or policy.delegate_to is DelegateTo.ANY)

    @property
    def batches(self) -> bool:
        """Whether one call creates several nodes, each of which then proves which slot is its own.

        An image may hold a client that cannot do so yet: then the site must say that its client can.
        """
        cloud = self.cloud
        return (
            self.flux.join is JoinMethod.SERVICE
            and cloud.nodes_per_call > 1
            and (not self.join.client or "nodes_per_call" in cloud.model_fields_set)
            and self.rules.node_proof(cloud) is not None
        )

    @property
    def missing_for_batches(self) -> str:
        """The key of ``[Cloud]`` without which nodes are created one by one; "" if no such key is missing."""
        wants_batches = self.flux.join is JoinMethod.SERVICE and self.cloud.nodes_per_call > 1
        key = self.rules.proof_key
        return key if key and wants_batches and not getattr(self.cloud, key) else ""

    @property
    def create_rate(self) -> tuple[float, int]:
        """How many nodes may be created a second, and how many at once.

        The default for batches is that of EC2's bucket of instances, which fills at the same rate as ours. Google
        counts requests: as many instances a second as requests for one may be made.
        """
        cloud = self.cloud
        per_s, burst = cloud.creates_per_s, cloud.creates_burst
        if self.batches and "creates_per_s" not in cloud.model_fields_set:
            per_s = self.rules.batch_creates_per_s
        if self.batches and "creates_burst" not in cloud.model_fields_set:
            burst = INSTANCES_AT_ONCE
        return per_s, burst

    @property
    def mode_text(self) -> str:
        """``act``, ``observe``, or ``act (gpu only observed)``."""
        only = ", ".join(sorted(self.observed_types)) if self.acts else ""
        return f"act ({only} only observed)" if only else str(Mode.ACT if self.acts else Mode.OBSERVE)


CLUSTER_MAX_CHARS = 32
_OF_TEST = "-cloud-test"


def cluster_of_test(cluster: str) -> str:
    """Return the name of the cluster to which the node of ``cloud-test`` belongs."""
    return cluster[: CLUSTER_MAX_CHARS - len(_OF_TEST)].rstrip("-") + _OF_TEST


def uuid_file(state_dir: Path) -> Path:
    """The file in which ``init`` stores the cluster's UUID."""
    return state_dir / "cluster-uuid"


def name_file(state_dir: Path) -> Path:
    """The file in which the service stores the cluster name that its nodes carry."""
    return state_dir / "cluster-name"


# --- allowed, but probably a mistake ----------------------------------------------------------------------


def site_warnings(site: Site) -> tuple[str, ...]:
    """Warn about probable mistakes in a valid site, one text each."""
    return (
        *_unaffordable_types(site),
        *_short_lived_types(site),
        *_unguarded_types(site),
        *_shown_jobs(site),
        *_skipped_jobs(site),
    )


def _unaffordable_types(site: Site) -> Iterator[str]:
    price_max = site.limits.price_per_hour_max
    for node_type in site.node_types:
        if node_type.price_per_hour > price_max and not node_type.prepaid:
            yield (
                f"[Node {node_type.name}] will never be bought: its price_per_hour = {node_type.price_per_hour} "
                f"is above price_per_hour_max = {price_max}. Raise the limit, or remove the type."
            )


def _short_lived_types(site: Site) -> Iterator[str]:
    """Warn of nodes that can be too old when they join: each would be replaced by one that is too old again."""
    boot_s = site.timing.boot_timeout_s
    for node_type in site.node_types:
        if node_type.max_age_s is not None and node_type.max_age_s <= boot_s:
            yield (
                f"[Node {node_type.name}] max_age = {format_fsd(node_type.max_age_s)} is not above boot_timeout = "
                f"{format_fsd(boot_s)}: a node may be too old when it joins, and is then replaced again and again. "
                "Set a longer max_age."
            )


def _unguarded_types(site: Site) -> Iterator[str]:
    """Warn about expensive types: Flux's simple scheduler gives a one-core job any rank with a free core."""
    cores_least = min(node_type.cores for node_type in site.node_types)
    cores_most = max(node_type.cores for node_type in site.node_types)
    gpus_everywhere = all(node_type.gpus for node_type in site.node_types)
    for node_type in site.node_types:
        if node_type.properties:
            continue
        if node_type.gpus and not gpus_everywhere:
            kind = "GPU"
        elif node_type.cores == cores_most > cores_least:
            kind = "large"
        else:
            continue
        yield (
            f"[Node {node_type.name}] is a {kind} type without a property: Flux may start small jobs on it. "
            "Give it a property, and let jobs or a queue require it."
        )


def _shown_jobs(site: Site) -> Iterator[str]:
    if site.web.jobs_shown_to is Viewers.EVERYBODY and site.web.listens_beyond_this_machine:
        yield (
            f"[Web] listen = {site.web.listen} with jobs_shown_to = everybody: whoever reaches this address sees "
            "all jobs and their users, without TLS. Listen on 127.0.0.1, behind a proxy with TLS, or set "
            "jobs_shown_to = owner."
        )


def _skipped_jobs(site: Site) -> Iterator[str]:
    """Warn of nodes for jobs that Flux does not start: in queue order it starts none behind a job that waits."""
    if site.policy.unserved is Unserved.SKIP and site.policy.queue_policy is QueuePolicy.FIFO:
        yield (
            "[Policy] unserved = skip buys nodes for jobs behind one that cannot be served. With queue_policy = "
            "fifo Flux starts none of them, so these nodes stay idle and cost money. Set unserved = hold, or "
            "queue_policy = backfill if the scheduler starts later jobs first."
        )
