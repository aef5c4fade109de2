"""The tags of instances that one call creates: all of them carry the same ones, which name the whole batch.

An instance's index in its batch picks its slot from the tags. EC2 numbers the instances of a call from 0
(``amiLaunchIndex``). On Compute Engine an instance's name tells its index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from nodemanager.cloud.common.libcloud_port import (
    TAG_BATCH,
    TAG_CLUSTER,
    TAG_CLUSTER_UUID,
    TAG_MADE_FROM,
    TAG_SLOTS,
    TAG_TYPE,
)
from nodemanager.core.nodes import Batch, CloudNode, Identity, Launch, batch_of
from nodemanager.core.notation import NotationError, compress_hostlist, expand_hostlist
from nodemanager.core.ports import CloudError
from nodemanager.core.slots import SlotName, TypeName

VALUE_MAX_CHARS = 256  # EC2's limit for one tag, the lowest
SLOTS_TAGS_MAX = 40  # of the 50 tags that a resource may have


def fits_tags(batch: Batch) -> bool:
    """Return whether tags can hold the names of the batch's slots."""
    return len(compress_hostlist(batch.slots)) <= SLOTS_TAGS_MAX * VALUE_MAX_CHARS


def create_in_parts(
    launches: Sequence[Launch], create: Callable[[Sequence[Launch]], Sequence[CloudNode | CloudError]]
) -> Sequence[CloudNode | CloudError]:
    """Create a batch by one call of ``create``; by one for each half if tags cannot hold the names of its slots.

    The second half is not created if the first one fails. Raises :class:`CloudError`.
    """
    if fits_tags(batch_of(launches)):
        return create(launches)
    middle = len(launches) // 2
    first = create_in_parts(launches[:middle], create)
    try:
        return [*first, *create_in_parts(launches[middle:], create)]
    except CloudError as error:
        return [*first, *(error for _ in launches[middle:])]


def tags_of_batch(
    batch: Batch, cluster: str, cluster_uuid: str, type_name: TypeName, made_from: str
) -> dict[str, str]:
    """Return the tags of every instance of a batch."""
    slots = compress_hostlist(batch.slots)
    pieces = [slots[start : start + VALUE_MAX_CHARS] for start in range(0, len(slots), VALUE_MAX_CHARS)]
    tags = {TAG_CLUSTER: cluster, TAG_CLUSTER_UUID: cluster_uuid, TAG_TYPE: type_name, TAG_BATCH: batch.stamp}
    tags |= {_slots_tag(number): piece for number, piece in enumerate(pieces)}
    return {**tags, TAG_MADE_FROM: made_from} if made_from else tags


def _slots_tag(number: int) -> str:
    return f"{TAG_SLOTS}-{number + 1}" if number else TAG_SLOTS


def batch_from_tags(tags: Mapping[str, str]) -> Batch | None:
    """Return the batch that an instance's tags name; None if it was created by itself, or by others."""
    stamp = tags.get(TAG_BATCH)
    if not stamp or TAG_SLOTS not in tags:
        return None
    names = (_slots_tag(number) for number in range(SLOTS_TAGS_MAX))
    try:
        return Batch(stamp, _expand("".join(tags.get(name, "") for name in names)))
    except NotationError:
        return None


@lru_cache(maxsize=256)
def _expand(slots: str) -> tuple[SlotName, ...]:
    return tuple(map(SlotName, expand_hostlist(slots)))  # the same for each of a thousand instances in a list


def identity_in_batch(tags: Mapping[str, str], index: str) -> Identity | None:
    """Return the identity of a batch's instance. ``index``: its number among the instances of its call."""
    batch = batch_from_tags(tags)
    if batch is None or not {TAG_CLUSTER, TAG_CLUSTER_UUID, TAG_TYPE} <= tags.keys():
        return None
    if not (index.isascii() and index.isdecimal()) or int(index) >= len(batch.slots):
        return None
    return Identity(
        cluster=tags[TAG_CLUSTER],
        cluster_uuid=tags[TAG_CLUSTER_UUID],
        launch=batch.launch(int(index)),
        slot=batch.slots[int(index)],
        type_name=TypeName(tags[TAG_TYPE]),
        made_from=tags.get(TAG_MADE_FROM, ""),
    )
