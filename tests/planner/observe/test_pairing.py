from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.nodes import CloudNode, CloudState, Identity, LaunchId, ProviderId
from nodemanager.core.slots import SlotName, TypeName
from nodemanager.planner.observe_cloud import pair
from nodemanager.planner.snapshot import Node
from tests.builders import CLUSTER, CLUSTER_UUID, a_cloud_node, a_launch, a_node

OURS = Identity(CLUSTER, CLUSTER_UUID, LaunchId("cloud1-1"), SlotName("cloud1"), TypeName("cloud"))
NAMESAKE = replace(OURS, cluster_uuid="another")
NEIGHBOUR = replace(NAMESAKE, cluster="another")

IDENTITIES = st.one_of(
    st.sampled_from([None, NAMESAKE, NEIGHBOUR]),
    st.integers(1, 5).map(lambda number: replace(OURS, launch=LaunchId(f"cloud{number}-1"))),
)
LISTED = st.builds(
    CloudNode,
    provider_id=st.integers(1, 8).map(lambda number: ProviderId(f"i-{number}")),
    state=st.sampled_from(CloudState),
    identity=IDENTITIES,
    created_at=st.one_of(st.none(), st.floats(0, 100)),
)
# A provider id names one machine, so repeated entries of a list are equal.
LISTS = st.lists(LISTED, max_size=12).map(lambda nodes: list({node.provider_id: node for node in nodes}.values()))
KNOWN = st.lists(st.integers(1, 4), unique=True).map(
    lambda numbers: {node.id: node for number in numbers for node in [a_node(f"cloud{number}")]}
)


def _pair(nodes: dict[LaunchId, Node], *listed: CloudNode) -> tuple[dict[LaunchId, ProviderId], list[ProviderId]]:
    pairing = pair(nodes, listed, CLUSTER, CLUSTER_UUID)
    paired = {launch: cloud.provider_id for launch, cloud in pairing.paired.items()}
    return paired, [stray.provider_id for stray in pairing.strays]


def test_a_pair_is_made_by_the_launch_in_the_tags() -> None:
    launch = a_launch("cloud1")
    node = a_node(launch=launch, cloud=None)
    assert _pair({node.id: node}, a_cloud_node(launch, provider_id="i-1")) == ({node.id: "i-1"}, [])


def test_a_name_or_an_address_used_again_makes_no_pair() -> None:
    node = a_node(cloud=a_cloud_node(a_launch(), addresses=("10.0.0.7",)))
    later = a_launch("cloud1", number=2)
    assert _pair({node.id: node}, a_cloud_node(later, provider_id="i-9", addresses=("10.0.0.7",))) == ({}, ["i-9"])


def test_of_twins_the_one_we_know_stays_then_a_living_one_then_the_older() -> None:
    launch = a_launch()
    young, old = (
        a_cloud_node(launch, provider_id=name, created_at=at) for name, at in [("young", 20.0), ("old", 10.0)]
    )
    dead = a_cloud_node(launch, provider_id="dead", created_at=5.0, state=CloudState.TERMINATED)
    unpaired = a_node(launch=launch, cloud=None)
    assert _pair({unpaired.id: unpaired}, young, dead, old) == ({launch.id: "old"}, ["young"])
    knows_young = a_node(launch=launch, cloud=young)
    assert _pair({knows_young.id: knows_young}, old, young) == ({launch.id: "young"}, ["old"])
    knows_dead = a_node(launch=launch, cloud=replace(dead, state=CloudState.RUNNING))
    assert _pair({knows_dead.id: knows_dead}, old, dead) == ({launch.id: "dead"}, ["old"]), "its end is noticed"


def test_a_stray_that_is_gone_already_is_none() -> None:
    assert _pair({}, a_cloud_node(a_launch(), state=CloudState.TERMINATED)) == ({}, [])


def test_others_are_counted_and_never_ours() -> None:
    theirs = [
        CloudNode(ProviderId("untagged"), CloudState.RUNNING, None),
        CloudNode(ProviderId("neighbour"), CloudState.RUNNING, NEIGHBOUR),
        CloudNode(ProviderId("namesake"), CloudState.RUNNING, NAMESAKE),
    ]
    node = a_node()
    pairing = pair({node.id: node}, theirs, CLUSTER, CLUSTER_UUID)
    assert not pairing.paired
    assert not pairing.strays
    assert [intruder.provider_id for intruder in pairing.intruders] == ["namesake"]
    assert pairing.strangers == 2


@given(KNOWN, LISTS, st.randoms(use_true_random=False))
def test_the_order_of_a_list_does_not_matter(
    nodes: dict[LaunchId, Node], listed: list[CloudNode], draw: Random
) -> None:
    shuffled = listed.copy()
    draw.shuffle(shuffled)
    assert pair(nodes, shuffled, CLUSTER, CLUSTER_UUID) == pair(nodes, listed, CLUSTER, CLUSTER_UUID)


@given(KNOWN, LISTS)
def test_a_list_that_shows_ours_twice_says_the_same(nodes: dict[LaunchId, Node], listed: list[CloudNode]) -> None:
    ours = [node for node in listed if node.identity is not None and node.identity.cluster_uuid == CLUSTER_UUID]
    assert pair(nodes, ours + ours, CLUSTER, CLUSTER_UUID) == pair(nodes, ours, CLUSTER, CLUSTER_UUID)


@given(KNOWN, LISTS)
def test_each_instance_has_one_place(nodes: dict[LaunchId, Node], listed: list[CloudNode]) -> None:
    pairing = pair(nodes, listed, CLUSTER, CLUSTER_UUID)
    placed = [node.provider_id for node in [*pairing.paired.values(), *pairing.strays, *pairing.intruders]]
    assert len(placed) == len(set(placed))
    left_out = [node for node in listed if node.provider_id not in placed]
    others = [node for node in left_out if node.identity is None or node.identity.cluster_uuid != CLUSTER_UUID]
    assert len(others) == pairing.strangers
    assert all(node.state is CloudState.TERMINATED for node in left_out if node not in others)
    assert pairing.paired.keys() <= nodes.keys()
    assert all(cloud.identity is not None and cloud.identity.launch == id_ for id_, cloud in pairing.paired.items())
