from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from nodemanager.fleet.constraints import holds
from nodemanager.fleet.demand import Demand
from nodemanager.fleet.packing import Bin, Market, Packing, Standing, fresh_bin, pack
from nodemanager.model import HasProperty, Job, JobId, NodeType, OnHosts, Reason, Shape, SlotName, because
from tests.builders import CLOUD, GPU, a_job, a_policy, a_type, rank_of, tasks, whole_nodes
from tests.fleet.strategies import SHAPES, TYPES

POLICY = a_policy(*TYPES)


@dataclass
class Shop:
    """Bins that are there and slots that may be bought, and the packing that a queue gets there."""

    node_types: tuple[NodeType, ...] = (CLOUD, GPU)
    nodes_max: int = 10
    price_max: Decimal = Decimal(100)
    bins: tuple[Bin, ...] = ()
    blocked: frozenset[str] = frozenset()

    def market(self) -> Market:
        policy = a_policy(*self.node_types)
        places = {
            node_type.name: [(slot, rank_of(policy, slot)) for slot in node_type.slots]
            for node_type in self.node_types
        }
        taken = {bin_.slot for bin_ in self.bins}
        return Market(
            node_types=self.node_types,
            free_slots={
                name: {place: None for place in those if place[0] not in taken} for name, those in places.items()
            },
            soon_free_slots={name: {} for name in places},
            all_slots=places,
            blocked={
                node_type.name: because("blocked")
                for node_type in self.node_types
                if node_type.name in self.blocked
            },
            nodes_left=self.nodes_max - len(self.bins),
            nodes_max=self.nodes_max,
            price_left=self.price_max,
            price_per_hour_max=self.price_max,
        )

    def pack(self, *queue: Job) -> Packing:
        return pack(Demand(queue, {}), [replace(bin_, serves=[]) for bin_ in self.bins], self.market())

    def why_not(self, shape: Shape) -> Reason:
        return self.pack(a_job(1, shape)).unplaced[JobId(1)]


def a_bin(
    slot: str = "cloud1", *, cores: int = 4, gpus: int = 0, standing: Standing = Standing.UP, whole: bool = True
) -> Bin:
    node_type = a_policy().type_of_slot[SlotName(slot)]
    rank = rank_of(a_policy(), slot)
    return Bin(SlotName(slot), rank, node_type.properties, cores, gpus, standing, node_type, whole)


def slots(packing: Packing, job: int = 1) -> list[str]:
    return [bin_.slot for bin_ in packing.placed[JobId(job)]]


# --- where a job goes -------------------------------------------------------------------------------------


def test_a_job_is_laid_on_what_is_there_before_anything_is_bought() -> None:
    assert slots(Shop(bins=(a_bin("cloud3"),)).pack(a_job(1, tasks(1)))) == ["cloud3"]


def test_what_is_up_is_filled_before_what_drains_and_that_before_what_comes() -> None:
    bins = (
        a_bin("cloud1", standing=Standing.COMING),
        a_bin("cloud2", standing=Standing.DRAINING),
        a_bin("cloud3"),
    )
    packing = Shop(bins=bins).pack(*(a_job(number, whole_nodes(1)) for number in (1, 2, 3, 4)))
    assert [slots(packing, job) for job in (1, 2, 3, 4)] == [["cloud3"], ["cloud2"], ["cloud1"], ["cloud4"]]


def test_a_partly_used_node_is_filled_before_an_empty_one() -> None:
    bins = (a_bin("cloud1"), a_bin("cloud2", cores=2, whole=False))
    assert slots(Shop(bins=bins).pack(a_job(1, tasks(1, cores=2)))) == ["cloud2"]


def test_an_exclusive_job_takes_whole_nodes_only() -> None:
    bins = (a_bin("cloud1", cores=3, whole=False), a_bin("cloud2"))
    packing = Shop(bins=bins).pack(a_job(1, whole_nodes(1)), a_job(2, tasks(1)), a_job(3, tasks(4)))
    assert slots(packing, 1) == ["cloud2"]
    assert slots(packing, 2) == ["cloud1"]
    assert slots(packing, 3) == ["cloud1", "cloud3"]  # what is left there, and a new one


def test_the_cheapest_type_that_fits_is_bought() -> None:
    packing = Shop().pack(a_job(1, tasks(1)), a_job(2, tasks(1, gpus=1)), a_job(3, tasks(1, cores=8)))
    assert [slots(packing, job) for job in (1, 2, 3)] == [["cloud1"], ["gpu1"], ["gpu2"]]


def test_a_gang_is_made_up_of_what_is_there_and_what_is_bought() -> None:
    assert slots(Shop(bins=(a_bin("cloud2"),)).pack(a_job(1, whole_nodes(3)))) == ["cloud2", "cloud1", "cloud3"]


def test_small_jobs_share_one_new_node() -> None:
    packing = Shop().pack(*(a_job(number, tasks(1)) for number in range(1, 5)))
    assert {slot for job in range(1, 5) for slot in slots(packing, job)} == {"cloud1"}


def test_a_constraint_chooses_the_host() -> None:
    assert slots(Shop().pack(a_job(1, tasks(1, where=OnHosts(frozenset({"cloud3"})))))) == ["cloud3"]


def test_jobs_are_taken_in_order_whatever_their_shapes() -> None:
    """The last slot is not given to a later job because an earlier one has the same shape."""
    queue = [a_job(1, whole_nodes(1)), a_job(2, tasks(1, gpus=1)), a_job(3, whole_nodes(1))]
    packing = Shop(nodes_max=2).pack(*queue)
    assert packing.placed.keys() == {1, 2}
    assert packing.unplaced[JobId(3)].code == "nodes_max"


# --- what stands in the way -------------------------------------------------------------------------------


def test_a_gang_that_cannot_be_had_whole_leaves_all_to_the_next_job() -> None:
    packing = Shop(nodes_max=2).pack(a_job(1, whole_nodes(3)), a_job(2, whole_nodes(2)))
    assert packing.unplaced[JobId(1)].code == "beyond_limits"
    assert packing.unplaced[JobId(1)].figures["nodes"] == 3
    assert slots(packing, 2) == ["cloud1", "cloud2"]


def test_the_price_cap_is_exact_to_the_last_digit() -> None:
    dime = a_type("dime", price="0.1")
    assert len(Shop((dime,), price_max=Decimal("0.3")).pack(a_job(1, whole_nodes(3))).placed) == 1
    short_of = Shop((dime,), price_max=Decimal("0.2999999999999999999"))
    assert short_of.why_not(whole_nodes(3)).code == "beyond_limits"
    reason = short_of.pack(a_job(1, whole_nodes(2)), a_job(2, whole_nodes(1))).unplaced[JobId(2)]
    assert reason.code == "price_per_hour_max"
    assert reason.figures["left"] == Decimal("0.0999999999999999999")


def test_no_free_slot_says_how_many_there_are_and_how_many_are_short() -> None:
    packing = Shop((CLOUD,)).pack(a_job(1, whole_nodes(2)), a_job(2, whole_nodes(4)))
    assert packing.unplaced[JobId(2)] == because("no_free_slot", node_type="cloud", slots=4, short=2)


def test_more_nodes_than_there_are_slots_is_said_as_such() -> None:
    reason = Shop((CLOUD,)).why_not(whole_nodes(6))
    assert reason == because("too_few_slots", slots=4, short=2)


def test_a_job_for_whole_nodes_starts_on_one_that_is_too_small_and_gets_a_larger_one_where_it_can() -> None:
    """The scheduler looks at the cores of one slot only (`flux submit -N1 -n8 -x` starts on four cores)."""
    eight_tasks = Shape(slots=8, cores_per_slot=1, nodes=1, exclusive=True)
    assert slots(Shop().pack(a_job(1, eight_tasks))) == ["gpu1"]
    assert slots(Shop((CLOUD,)).pack(a_job(1, eight_tasks))) == ["cloud1"]


def test_a_blocked_type_gives_way_to_the_next() -> None:
    shop = Shop(blocked=frozenset({"cloud"}))
    assert slots(shop.pack(a_job(1, tasks(1)))) == ["gpu1"]
    assert shop.why_not(whole_nodes(3)).code == "blocked"


def test_what_no_type_can_ever_serve_names_the_nearest_and_what_it_lacks() -> None:
    too_large = Shop().why_not(tasks(1, cores=64))
    assert too_large == because("no_type_fits", nearest="gpu", lacks=("cores: has 8, needs 64",))
    too_many_gpus = Shop().why_not(tasks(1, gpus=3))
    assert too_many_gpus == because("no_type_fits", nearest="gpu", lacks=("gpus: has 2, needs 3",))
    nowhere = Shop().why_not(tasks(1, where=HasProperty("mars")))
    assert nowhere.figures["lacks"] == ("constraint: not met by any of its slots",)
    assert Shop(()).why_not(tasks(1)) == because("no_type_fits")


def test_the_least_number_is_kept_up_with_the_cheapest() -> None:
    market = Shop(nodes_max=5).market()
    bought = [market.cheapest() for _ in range(6)]
    assert [bin_.slot for bin_ in bought if isinstance(bin_, Bin)] == [
        "cloud1",
        "cloud2",
        "cloud3",
        "cloud4",
        "gpu1",
    ]
    assert isinstance(bought[-1], Reason)
    assert Shop(()).market().cheapest() == because("no_node_type")


# --- whatever the queue and the fleet ---------------------------------------------------------------------


@st.composite
def shops(draw: st.DrawFn) -> Shop:
    there = draw(st.sets(st.sampled_from(["cloud1", "cloud2", "gpu1"])))
    bins = []
    for slot in sorted(there):
        node_type = POLICY.type_of_slot[SlotName(slot)]
        bin_ = fresh_bin(
            node_type, (SlotName(slot), rank_of(POLICY, slot)), draw(st.sampled_from(list(Standing)[:3]))
        )
        if draw(st.booleans()):
            bin_ = replace(bin_, cores=draw(st.integers(0, bin_.cores)), whole=False)
        bins.append(bin_)
    return Shop(
        node_types=TYPES,
        nodes_max=draw(st.integers(0, 5)),
        price_max=draw(st.sampled_from(["0", "0.30", "0.61", "1.40", "9"]).map(Decimal)),
        bins=tuple(bins),
        blocked=draw(st.sampled_from([frozenset(), frozenset({"cloud"})])),
    )


QUEUES = st.lists(SHAPES, max_size=7).map(
    lambda shapes: tuple(a_job(number, shape) for number, shape in enumerate(shapes, start=1))
)


def _bought(packing: Packing) -> list[Bin]:
    return [bin_ for bin_ in packing.bins if bin_.standing is Standing.NEW]


@given(shops(), QUEUES)
def test_every_job_is_placed_or_has_its_reason(shop: Shop, queue: tuple[Job, ...]) -> None:
    packing = shop.pack(*queue)
    assert not packing.placed.keys() & packing.unplaced.keys()
    assert packing.placed.keys() | packing.unplaced.keys() == {job.id for job in queue}


@given(shops(), QUEUES)
def test_no_constraint_is_broken_and_no_node_serves_a_job_twice(shop: Shop, queue: tuple[Job, ...]) -> None:
    packing = shop.pack(*queue)
    for job in queue:
        for bin_ in packing.placed.get(job.id, ()):
            assert holds(job.shape.constraint, properties=bin_.properties, host=bin_.slot, rank=bin_.rank)
        names = [bin_.slot for bin_ in packing.placed.get(job.id, ())]
        assert len(names) == len(set(names))


@given(shops(), QUEUES)
def test_a_job_gets_all_that_it_asks_for_or_none(shop: Shop, queue: tuple[Job, ...]) -> None:
    packing = shop.pack(*queue)
    serving = {job for bin_ in packing.bins for job in bin_.serves}
    assert serving == packing.placed.keys()
    for job in queue:
        if job.id in packing.placed and job.shape.nodes is not None:
            assert len(packing.placed[job.id]) == job.shape.nodes


@given(shops(), QUEUES)
def test_what_is_laid_on_a_node_fits_it(shop: Shop, queue: tuple[Job, ...]) -> None:
    """Counted again from the jobs: cores and GPUs for those that say how many nodes, in all for the others."""
    packing = shop.pack(*queue)
    shapes = {job.id: job.shape for job in queue}
    before = {bin_.slot: bin_ for bin_ in shop.bins}
    for bin_ in packing.bins:
        start = before.get(bin_.slot)
        if start is None:
            assert bin_.node_type is not None
            start = fresh_bin(bin_.node_type, (bin_.slot, bin_.rank), Standing.NEW)
        fixed = [shapes[job] for job in bin_.serves if shapes[job].nodes is not None and not shapes[job].exclusive]
        assert all(shapes[job].cores_per_slot <= start.cores for job in bin_.serves)
        assert sum(shape.slots * shape.cores_per_slot for shape in fixed) <= start.cores
        assert sum(shape.slots * shape.gpus_per_slot for shape in fixed) <= start.gpus
        assert min(bin_.cores, bin_.gpus) >= 0
        if any(shapes[job].exclusive for job in bin_.serves):
            assert start.whole
            assert len(bin_.serves) == 1
    _spread_out_jobs_get_their_cores(packing, before, shapes)


def _spread_out_jobs_get_their_cores(
    packing: Packing, before: dict[SlotName, Bin], shapes: dict[JobId, Shape]
) -> None:
    """What has left the nodes in all is what the jobs that are placed ask for."""
    if any(shapes[job].exclusive for job in packing.placed):
        return
    had = sum(before[bin_.slot].cores if bin_.slot in before else _cores(bin_) for bin_ in packing.bins)
    left = sum(bin_.cores for bin_ in packing.bins)
    asked = sum(shapes[job].slots * shapes[job].cores_per_slot * (shapes[job].nodes or 1) for job in packing.placed)
    assert had - left == asked


def _cores(bin_: Bin) -> int:
    assert bin_.node_type is not None
    return bin_.node_type.cores


@given(shops(), QUEUES)
def test_no_cap_is_exceeded_nor_a_slot_bought_twice(shop: Shop, queue: tuple[Job, ...]) -> None:
    bought = _bought(shop.pack(*queue))
    assert len(bought) <= max(0, shop.nodes_max - len(shop.bins))
    types = [bin_.node_type for bin_ in bought if bin_.node_type is not None]
    assert sum((node_type.price_per_hour for node_type in types), Decimal(0)) <= shop.price_max
    slots_used = Counter(bin_.slot for bin_ in [*shop.bins, *bought])
    assert not [slot for slot, count in slots_used.items() if count > 1]
    assert not [node_type for node_type in types if node_type.name in shop.blocked]


@given(shops(), QUEUES)
def test_nothing_is_bought_that_serves_nobody(shop: Shop, queue: tuple[Job, ...]) -> None:
    assert all(bin_.serves for bin_ in _bought(shop.pack(*queue)))


@given(shops(), QUEUES, st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_does_not_matter(shop: Shop, queue: tuple[Job, ...], draw: Random) -> None:
    bins = list(shop.bins)
    draw.shuffle(bins)
    one, other = shop.pack(*queue), replace(shop, bins=tuple(bins)).pack(*queue)
    assert {job: [bin_.slot for bin_ in those] for job, those in one.placed.items()} == {
        job: [bin_.slot for bin_ in those] for job, those in other.placed.items()
    }
    assert one.unplaced == other.unplaced


@given(shops(), QUEUES)
def test_a_job_more_at_the_end_changes_nothing_for_those_before(shop: Shop, queue: tuple[Job, ...]) -> None:
    if not queue:
        return
    all_of_them, but_the_last = shop.pack(*queue), shop.pack(*queue[:-1])
    for job in queue[:-1]:
        assert (job.id in all_of_them.placed) is (job.id in but_the_last.placed)
        if job.id in all_of_them.placed:
            assert slots(all_of_them, job.id) == slots(but_the_last, job.id)


@given(shops(), QUEUES)
def test_what_is_given_back_is_there_for_the_next(shop: Shop, queue: tuple[Job, ...]) -> None:
    market = shop.market()
    start = (market.nodes_left, market.price_left, {name: set(free) for name, free in market.free_slots.items()})
    for job in queue:
        bought = market.buy(job.shape, job.shape.nodes or job.shape.slots)
        if isinstance(bought, Reason):
            now = (market.nodes_left, market.price_left, {name: set(f) for name, f in market.free_slots.items()})
            assert now == start
        else:
            return
