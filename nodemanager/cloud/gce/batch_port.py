"""Creates several instances by one call: ``bulkInsert``.

All instances of a call have the same labels and metadata, which name their batch. Each has the name of its launch.
Sources: ``instances.bulkInsert`` in https://cloud.google.com/compute/docs/reference/rest/v1, and "Troubleshooting
bulk VM creation" in Google's documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from libcloud.compute.base import Node
from libcloud.compute.types import NodeState

from nodemanager.cloud.common.batch_tags import create_in_parts, tags_of_batch
from nodemanager.cloud.common.libcloud_port import NodeRequest, checked_user_data
from nodemanager.cloud.gce.driver import ApiError
from nodemanager.cloud.gce.instances import LABEL_CLUSTER, batch_label, bulk_body, instance_name, request_id
from nodemanager.cloud.gce.port import GceCloud
from nodemanager.core.nodes import CloudNode, FailureKind, Launch, LaunchId, ProviderId, batch_of
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import NodeType

INSERTS_MAX = 12  # for one batch in one zone; enough to find how many of 500 instances a quota allows

_REFUSES_ALL = (FailureKind.THROTTLED, FailureKind.CREDENTIALS)  # a delete, and those after it


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch to create.

    ``request``: what its instances have in common. ``launches``: the launch of each, by the instance's name.
    ``made``: the nodes that exist so far.
    """

    request: NodeRequest
    label: Mapping[str, str]
    launches: Mapping[str, LaunchId]
    started_s: float
    made: dict[LaunchId, CloudNode] = field(default_factory=dict)

    def missing(self, names: Sequence[str] = ()) -> list[str]:
        """Return the names, of these or of all, that no node has yet."""
        return [name for name in names or self.launches if self.launches[name] not in self.made]


class GceBatchCloud(GceCloud):
    """The cloud port of one project (:class:`nodemanager.core.ports.BatchCloudPort`)."""

    def create_many(self, launches: Sequence[Launch], node_type: NodeType) -> Sequence[CloudNode | CloudError]:
        """Create the nodes of a batch, or as many as the zones and the quota allow. Raises :class:`CloudError`.

        Usually that is one call. Another zone is tried for the nodes that the first one lacks. If a quota does not
        allow all of them, fewer are tried.
        """
        started_s = self._clock.monotonic_s()
        return create_in_parts(launches, lambda part: self._create_batch(self._batch(part, node_type, started_s)))

    def _create_batch(self, batch: _Batch) -> Sequence[CloudNode | CloudError]:
        batch.made.update(self._existing(batch))
        only, node_type = batch.request.zone, batch.request.node_type
        zones = (only,) if only else self._placements[node_type.name].zones
        why = CloudError(FailureKind.CAPACITY, "no zone is configured")
        for zone in zones:
            why = self._fill_from(zone, batch) or why
            if not batch.missing() or why.kind is not FailureKind.CAPACITY:
                break
        if not batch.made:
            raise why
        return [batch.made.get(launch, why) for launch in batch.launches.values()]

    def destroy_many(self, provider_ids: Sequence[ProviderId]) -> Sequence[CloudError | None]:
        """Delete instances, each by a call of its own: the API has no call for several.

        After a refusal that would meet the others too, they are not tried. Raises it if it is the first answer.
        """
        answers: list[CloudError | None] = []
        for provider_id in provider_ids:
            try:
                self.destroy(provider_id)
                answers.append(None)
            except CloudError as error:
                if error.kind not in _REFUSES_ALL:
                    answers.append(error)
                elif not answers:
                    raise
                else:
                    return [*answers, *[error] * (len(provider_ids) - len(answers))]
        return answers

    def _batch(self, launches: Sequence[Launch], node_type: NodeType, started_s: float) -> _Batch:
        batch = batch_of(launches)
        if self._batch_script is None:
            raise ValueError("this site's nodes cannot be told apart, so each is created by itself")
        first = launches[0]
        request = NodeRequest(
            name=f"{self._cluster}-{node_type.name}",
            node_type=node_type,
            client_token="\n".join(sorted(launch.client_token for launch in launches)),
            tags=tags_of_batch(batch, self._cluster, self._cluster_uuid, node_type.name, first.made_from),
            user_data=checked_user_data(self._batch_script(batch.stamp), f"batch {batch.stamp}"),
            zone=first.zone,
            group=first.group,
        )
        names = {instance_name(self._cluster, launch.slot, launch.id): launch.id for launch in launches}
        return _Batch(request, batch_label(batch.stamp), names, started_s)

    def _existing(self, batch: _Batch) -> dict[LaunchId, CloudNode]:
        """Return the nodes of the batch that exist, in any zone."""
        wanted = set(batch.launches.values())
        nodes = self._read_with_retries(lambda: [self._cloud_node(node) for node in self._labelled(batch.label)])
        return {
            it.identity.launch: it
            for it in nodes
            if it.identity is not None
            and it.identity.cluster_uuid == self._cluster_uuid
            and it.identity.launch in wanted
        }

    def _fill_from(self, zone: str, batch: _Batch) -> CloudError | None:
        """Create the nodes that the batch still lacks. Return why some of them could not be created.

        Google refuses a request as a whole if it exceeds a quota. Then the next one asks for half as many.
        """
        why: CloudError | None = None
        size = len(batch.launches)
        for number in range(INSERTS_MAX):
            names = batch.missing()[:size]
            if not names:
                break
            try:
                self._insert(zone, names, batch, number)
            except CloudError as error:
                why = error
                size = len(names) // 2
                if error.kind is not FailureKind.QUOTA or not size:
                    break
        return why

    def _insert(self, zone: str, names: Sequence[str], batch: _Batch, number: int) -> None:
        """Make one bulk insert, and note the nodes that it created. Raises if it did not create all of them.

        ``number``: of this insert among those of the batch in this zone. A repeated batch makes the same ones.
        """
        placement = self._placements[batch.request.node_type.name]
        labels = {LABEL_CLUSTER: self._cluster, **batch.label}

        def insert(policy: str) -> tuple[bool, CloudError | None]:
            self._refuse_late_create(batch.started_s)
            body = bulk_body(names, batch.request, placement, labels, policy)
            token = request_id(batch.request.client_token, zone, str(number))
            try:
                with self._as_cloud_errors(creating=True):
                    operation = self.driver.bulk_insert(zone, body, token)
                return self._await_insert(zone, operation), None
            except CloudError as error:
                if isinstance(error.__cause__, ApiError) and error.__cause__.finished:
                    return True, error  # some instances may exist all the same
                raise

        group = f"{zone.rpartition('-')[0]}/{batch.request.group}" if batch.request.group else ""
        is_done, failed = self._groups.create_in(group, insert)
        try:
            batch.made.update(self._existing(batch))
        except CloudError as error:
            if failed is not None:
                what = f"{failed.detail}; and the instances cannot be read: {error.detail}"
                raise CloudError(FailureKind.AMBIGUOUS, what, error.retry_after_s) from error
            is_done = False
        missing = batch.missing(names)
        if not is_done:  # they exist or will soon. The next list shows their details
            batch.made.update({batch.launches[name]: self._coming(zone, name, batch) for name in missing})
        elif missing:
            what = f"{zone} created {len(names) - len(missing)} of {len(names)} instances: it had no more"
            raise failed or CloudError(FailureKind.CAPACITY, what)

    def _coming(self, zone: str, name: str, batch: _Batch) -> CloudNode:
        extra = {"metadata": dict(batch.request.tags), "status": "PROVISIONING"}
        return self._cloud_node(Node(f"{zone}/{name}", name, NodeState.PENDING, [], [], self.driver, extra=extra))
