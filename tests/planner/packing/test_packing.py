"""Packing, compared with bounds: exhaustive search for few pieces, linear programs for many."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.planner.frozen import replace
from nodemanager.planner.packing import exact
from nodemanager.planner.packing.exact import find_dominated
from nodemanager.planner.packing.greedy import pack_best_fit, pack_by_patterns
from nodemanager.planner.packing.packing import fill, pack
from nodemanager.planner.packing.types import (
    Effort,
    Item,
    Load,
    Lot,
    Packed,
    PackingLimits,
    pieces_on_empty,
    total_cost,
)
from tests.benchmarks.packing_cases import FAMILIES, small

UNBOUNDED = 10**9
NO_LIMITS = PackingLimits(UNBOUNDED, 10**15)


def an_item(pieces: int, cores: int, *, gpus: int = 0, memory_bytes: int = 0, **more: int) -> Item:
    return Item(pieces, cores, gpus, memory_bytes, more.get("per_node_max", UNBOUNDED), bool(more.get("whole")))


def a_lot(cores: int, price: int, *, gpus: int = 0, memory_bytes: int = 64, count: int = 100) -> Lot:
    return Lot(cores, gpus, memory_bytes, count, price, price)


def packed(items: Sequence[Item], lots: Sequence[Lot], limits: PackingLimits = NO_LIMITS) -> Packed:
    return pack(items, lots, fits_of(items, lots), limits)


def fits_of(items: Sequence[Item], lots: Sequence[Lot]) -> list[list[int]]:
    return [[pieces_on_empty(item, lot) for lot in lots] for item in items]


def nodes(made: Packed) -> dict[int, int]:
    """How many nodes of each lot."""
    counts: dict[int, int] = {}
    for load in made.loads:
        counts[load.lot] = counts.get(load.lot, 0) + load.nodes
    return counts


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.data())
def test_equal_pieces_on_equal_nodes_are_packed_at_the_least_cost_without_effort(
    counts: list[int], data: st.DataObject
) -> None:
    cores, whole = data.draw(st.integers(1, 5)), data.draw(st.booleans())
    apart = data.draw(st.integers(1, 4)) if len(counts) == 1 else UNBOUNDED
    items = [an_item(pieces, cores, per_node_max=apart, whole=whole) for pieces in counts]
    lot = a_lot(
        data.draw(st.integers(cores, 16)), data.draw(st.integers(1, 50)), count=data.draw(st.integers(1, 60))
    )
    fits = [[pieces_on_empty(item, lot) * data.draw(st.booleans())] for item in items]
    limits = PackingLimits(data.draw(st.integers(0, 80)), data.draw(st.integers(0, 1000)))
    greedy, best = (pack(items, [lot], fits, limits, Effort(left)) for left in (0, 250_000))
    assert (sum(greedy.left), total_cost(greedy.loads, [lot])) == (sum(best.left), total_cost(best.loads, [lot]))


# --- stories ----------------------------------------------------------------------------------------------


def test_the_cheapest_that_fits_is_taken() -> None:
    lots = [a_lot(4, 40), a_lot(8, 300, gpus=2)]
    assert nodes(packed([an_item(1, 1)], lots)) == {0: 1}
    assert nodes(packed([an_item(1, 1, gpus=1)], lots)) == {1: 1}


def test_one_large_node_is_taken_where_it_costs_less_than_several_small() -> None:
    lots = [a_lot(4, 40), a_lot(16, 130)]
    assert nodes(packed([an_item(8, 2)], lots)) == {1: 1}
    assert nodes(packed([an_item(5, 2)], lots)) == {0: 3}


def test_work_that_needs_a_dear_node_takes_other_work_along() -> None:
    """The GPU node must be bought in any case, and its other cores cost nothing."""
    lots = [a_lot(4, 40), a_lot(8, 300, gpus=2)]
    assert nodes(packed([an_item(1, 2, gpus=1), an_item(6, 1)], lots)) == {1: 1}


def test_much_memory_and_many_cores_are_put_together() -> None:
    made = packed([an_item(500, 2, memory_bytes=1), an_item(500, 2, memory_bytes=7)], [a_lot(32, 100)])
    assert nodes(made) == {0: 63}  # 1,000 pieces of 4 bytes on average


def test_gangs_lie_on_as_many_nodes_as_they_have_pieces() -> None:
    made = packed([an_item(16, 1, per_node_max=1)], [a_lot(4, 40)])
    assert nodes(made) == {0: 16}
    assert all(count == 1 for load in made.loads for _, count in load.pieces)


def test_whole_nodes_are_shared_with_nobody() -> None:
    assert nodes(packed([an_item(2, 1, per_node_max=2, whole=1), an_item(2, 1)], [a_lot(4, 40)])) == {0: 3}


def test_where_nodes_run_short_larger_ones_are_taken() -> None:
    lots = [a_lot(4, 40), a_lot(16, 400)]
    assert nodes(packed([an_item(16, 1)], lots)) == {0: 4}
    assert nodes(packed([an_item(16, 1)], lots, PackingLimits(1, 10**15))) == {1: 1}
    assert nodes(packed([an_item(1600, 1)], lots, PackingLimits(100, 10**15))) == {1: 100}


def test_the_price_cap_is_kept_and_what_found_no_place_is_told() -> None:
    made = packed([an_item(1000, 1)], [a_lot(4, 40, count=1000)], PackingLimits(UNBOUNDED, 399))
    assert nodes(made) == {0: 9}
    assert made.left == (1000 - 36,)


def test_what_is_paid_for_is_filled_whatever_the_limits() -> None:
    items, lots = [an_item(10, 1)], [a_lot(4, 0, count=2)]
    made = fill(items, lots, fits_of(items, lots))
    assert nodes(made) == {0: 2}
    assert made.left == (2,)


# --- whatever the work ------------------------------------------------------------------------------------

MANY = st.integers(1, 400)
FEW = st.integers(1, 3)


def items_of(pieces: st.SearchStrategy[int]) -> st.SearchStrategy[list[Item]]:
    shared = st.builds(
        an_item,
        pieces,
        st.integers(1, 9),
        gpus=st.sampled_from([0, 0, 0, 1, 2]),
        memory_bytes=st.integers(0, 40),
        per_node_max=st.sampled_from([1, 2, UNBOUNDED, UNBOUNDED, UNBOUNDED]),
    )
    whole = st.builds(an_item, pieces, st.integers(1, 9), whole=st.just(1))
    return st.lists(st.one_of(shared, shared, shared, whole), min_size=1, max_size=3)


def lots_of(count: st.SearchStrategy[int]) -> st.SearchStrategy[list[Lot]]:
    lot = st.builds(
        a_lot,
        st.integers(1, 24),
        st.integers(1, 60),
        gpus=st.sampled_from([0, 0, 2, 4]),
        memory_bytes=st.integers(8, 80),
        count=count,
    )
    return st.lists(lot, min_size=1, max_size=4)


LIMITS = st.builds(PackingLimits, st.sampled_from([0, 2, 5, UNBOUNDED]), st.sampled_from([0, 30, 100, 10**15]))


def check(items: Sequence[Item], lots: Sequence[Lot], limits: PackingLimits, made: Packed) -> None:
    left = [item.pieces for item in items]
    taken = [0] * len(lots)
    for load in made.loads:
        lot = lots[load.lot]
        taken[load.lot] += load.nodes
        on_it = [(items[number], count) for number, count in load.pieces]
        assert all(0 < count <= item.per_node_max for item, count in on_it)
        if any(item.exclusive for item, _ in on_it):
            assert sum(count for _, count in on_it) == 1
        assert sum(item.cores * count for item, count in on_it) <= lot.cores
        assert sum(item.gpus * count for item, count in on_it) <= lot.gpus
        assert sum(item.memory_bytes * count for item, count in on_it) <= lot.memory_bytes
        for number, count in load.pieces:
            left[number] -= load.nodes * count
    assert tuple(left) == made.left
    assert min(left) >= 0
    assert all(count <= lot.count for count, lot in zip(taken, lots, strict=True))
    assert sum(taken) <= limits.nodes
    assert sum(count * lot.price for count, lot in zip(taken, lots, strict=True)) <= limits.price


@settings(deadline=None)
@given(items_of(MANY), lots_of(st.sampled_from([0, 3, 1000])), LIMITS)
def test_what_lies_on_a_node_fits_it_and_no_limit_is_passed(
    items: list[Item], lots: list[Lot], limits: PackingLimits
) -> None:
    check(items, lots, limits, packed(items, lots, limits))


@settings(deadline=None)
@given(items_of(FEW), lots_of(st.sampled_from([0, 1, 100])), LIMITS)
def test_the_same_for_few_pieces(items: list[Item], lots: list[Lot], limits: PackingLimits) -> None:
    check(items, lots, limits, packed(items, lots, limits))


@settings(deadline=None)
@given(items_of(MANY), lots_of(st.just(10**6)))
def test_all_that_fits_somewhere_is_laid_where_there_are_no_limits(items: list[Item], lots: list[Lot]) -> None:
    made = packed(items, lots)
    for item, left in zip(items, made.left, strict=True):
        assert left == (0 if any(pieces_on_empty(item, lot) for lot in lots) else item.pieces)


# --- at the bound -----------------------------------------------------------------------------------------


def price(made: Packed, lots: Sequence[Lot]) -> int:
    assert not any(made.left)
    return total_cost(made.loads, lots)


@pytest.mark.parametrize(
    ("family", "least"),
    [
        ("c16 and r16", 3_690_000),
        ("6 and 5 of 16", 2_310_000),
        ("49/26/25/22 of 96", 6_133_333),
    ],
)
def test_what_greedy_packing_gets_wrong_costs_little_more_than_the_linear_program(family: str, least: int) -> None:
    case = FAMILIES[family](Random(1))
    assert least <= price(packed(case.items(), case.lots()), case.lots()) <= 1.01 * least


@pytest.mark.parametrize(
    ("family", "least"),  # the least: of the linear program in which work may be split at will
    [("500 shapes", 38_227_850), ("400 types, 500 shapes", 35_033_672)],
)
def test_hundreds_of_shapes_cost_little_more_than_work_that_could_be_split(family: str, least: int) -> None:
    """The greedy packings alone cost 9 % and 7 % more."""
    case = FAMILIES[family](Random(1))
    lots = undominated(case.lots())
    assert least <= price(packed(case.items(), lots), lots) <= 1.03 * least


def undominated(lots: Sequence[Lot]) -> list[Lot]:
    left_out = find_dominated(lots, [()] * len(lots))
    return [lot for number, lot in enumerate(lots) if number not in left_out]


@pytest.mark.parametrize("family", ["everything", "EC2-like, 300 shapes", "500 shapes"])
@pytest.mark.parametrize("seed", range(3))
def test_many_kinds_keep_every_rule_in_any_order_and_cost_no_more_than_a_greedy_packing(
    family: str, seed: int
) -> None:
    case, draw = FAMILIES[family](Random(seed)), Random(seed)
    items, lots = case.items(), case.lots()
    fits = fits_of(items, lots)
    made = packed(items, lots)
    check(items, lots, NO_LIMITS, made)
    assert not any(made.left)
    plain = pack_best_fit(items, lots, fits, by_share=False)
    assert plain is not None
    cost = price(made, lots)
    assert cost <= min(price(plain, lots), price(pack_by_patterns(items, lots, fits), lots))
    few = [replace(lot, count=max(1, nodes(made).get(number, 0) // 2)) for number, lot in enumerate(lots)]
    limits = PackingLimits(sum(nodes(made).values()) // 2, cost // 2)
    check(items, few, limits, packed(items, few, limits))
    draw.shuffle(items)
    draw.shuffle(lots)
    assert price(packed(items, lots), lots) == cost


def best_fit(items: Sequence[Item], lots: Sequence[Lot]) -> int | None:
    """What a plain best fit costs, piece by piece: the largest first, a new node of the cheapest type that fits."""
    order = sorted((it for it in items for _ in range(it.pieces)), key=lambda it: (-it.cores, -it.memory_bytes))
    opened: list[list[int]] = []
    cost = 0
    for item in order:
        fit = [o for o in opened if o[0] >= item.cores and o[1] >= item.memory_bytes and o[2] >= item.gpus]
        if not fit:
            buys = [lot for lot in lots if pieces_on_empty(item, lot)]
            if not buys:
                return None
            lot = min(buys, key=lambda it: it.cost)
            cost += lot.cost
            fit = [[lot.cores, lot.memory_bytes, lot.gpus]]
            opened += fit
        node = min(fit)
        for place, size in enumerate((item.cores, item.memory_bytes, item.gpus)):
            node[place] -= size
    return cost


def test_small_random_work_costs_no_more_than_best_fit_and_the_same_in_any_order() -> None:
    draw = Random(5)
    for seed in range(60):
        case = small(Random(seed))
        items, lots = case.items(), case.lots()
        made = price(packed(items, lots), lots)
        plain = None if any(it.exclusive or it.per_node_max < it.pieces for it in items) else best_fit(items, lots)
        assert plain is None or made <= plain, f"seed {seed}"
        draw.shuffle(items)
        draw.shuffle(lots)
        assert price(packed(items, lots), lots) == made, f"seed {seed}"


@pytest.mark.parametrize(("seed", "least"), [(70, 581_762), (130, 213_688), (177, 657_290), (192, 395_050)])
def test_few_pieces_cost_no_more_than_best_fit_in_the_best_of_many_orders(seed: int, least: int) -> None:
    """``least``: what best fit costs with the items in the best of 100 shuffled orders."""
    case = small(Random(seed))
    items, lots = case.items(), case.lots()
    for reverse in (False, True):
        items.sort(key=lambda item: (item.cores, item.memory_bytes), reverse=reverse)
        lots.sort(key=lambda lot: lot.cost, reverse=reverse)
        assert price(packed(items, lots), lots) <= least


def test_small_random_work_costs_at_most_a_twentieth_more_than_the_best_packing_known() -> None:
    """Over 25 cases: the best of the yardstick, which solves a whole program over the columns of the linear one."""
    pytest.importorskip("highspy")
    from tests.benchmarks.packing_bound import bound  # noqa: PLC0415 - needs HiGHS

    ratios = []
    for seed in range(25):
        case = small(Random(seed))
        items, lots = case.items(), case.lots()
        known = bound(items, lots, fits_of(items, lots), mip_s=2.0)
        made = price(packed(items, lots), lots)
        assert made >= known.least * (1 - 1e-6), f"seed {seed}: no packing costs so little"
        ratios.append(made / known.best)
    assert max(ratios) <= 1.05
    assert sorted(ratios)[len(ratios) // 2] <= 1.0005


def test_a_dominated_lot_is_left_out_until_the_better_one_may_run_out() -> None:
    better, worse, small_one = a_lot(8, 40, count=50), a_lot(8, 50), a_lot(4, 30)
    lots, suits = [better, worse, small_one], [()] * 3
    assert find_dominated(lots, suits) == {1: 0}
    assert find_dominated(lots, suits, used={0: 25}) == {1: 0}
    assert find_dominated(lots, suits, used={0: 40}) == {}
    assert find_dominated(lots, suits, run_out={0}) == {}
    assert find_dominated(lots, [(), "other work", ()]) == {}
    third = a_lot(8, 60)
    assert find_dominated([better, worse, third], suits, used={0: 40}) == {2: 0}  # two take turns


# --- against every way there is ---------------------------------------------------------------------------


def cheapest_of_all(items: Sequence[Item], lots: Sequence[Lot], limits: PackingLimits) -> int | None:
    """The least cost, by trying every number of nodes of each lot and every way to fill them."""
    pieces = [number for number, item in enumerate(items) for _ in range(item.pieces)]
    ranges = [range(min(lot.count, len(pieces)) + 1) for lot in lots]
    best: int | None = None
    for counts in itertools.product(*ranges):
        price = sum(count * lot.price for count, lot in zip(counts, lots, strict=True))
        allowed = sum(counts) <= min(limits.nodes, len(pieces)) and price <= limits.price
        if not allowed or (best is not None and price >= best):
            continue
        opened = [number for number, count in enumerate(counts) for _ in range(count)]
        if can_hold(items, pieces, [(lots[number], ()) for number in opened]):
            best = price
    return best


def can_hold(items: Sequence[Item], pieces: Sequence[int], bins: list[tuple[Lot, tuple[int, ...]]]) -> bool:
    if not pieces:
        return True
    first, *rest = pieces
    for place in range(len(bins)):
        lot, there = bins[place]
        together = (*there, first)
        new = bins.index(bins[place]) == place and holds_together(items, lot, together)
        if new and can_hold(items, rest, [*bins[:place], (lot, together), *bins[place + 1 :]]):
            return True
    return False


def holds_together(items: Sequence[Item], lot: Lot, together: tuple[int, ...]) -> bool:
    if any(items[number].exclusive for number in together):
        return len(together) == 1 and pieces_on_empty(items[together[0]], lot) > 0
    return (
        sum(items[number].cores for number in together) <= lot.cores
        and sum(items[number].gpus for number in together) <= lot.gpus
        and sum(items[number].memory_bytes for number in together) <= lot.memory_bytes
        and all(together.count(number) <= items[number].per_node_max for number in together)
    )


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.builds(
            an_item,
            st.integers(1, 2),
            st.integers(1, 9),
            gpus=st.sampled_from([0, 0, 1]),
            memory_bytes=st.integers(0, 30),
            per_node_max=st.sampled_from([1, UNBOUNDED, UNBOUNDED]),
        ),
        min_size=1,
        max_size=3,
    ),
    st.lists(
        st.builds(
            a_lot,
            st.integers(2, 20),
            st.integers(1, 40),
            gpus=st.sampled_from([0, 1, 2]),
            memory_bytes=st.integers(20, 60),
            count=st.sampled_from([1, 2, 9]),
        ),
        min_size=1,
        max_size=3,
    ),
    st.builds(PackingLimits, st.sampled_from([1, 3, UNBOUNDED]), st.sampled_from([40, 10**15])),
)
def test_few_pieces_cost_no_more_than_they_must(items: list[Item], lots: list[Lot], limits: PackingLimits) -> None:
    least = cheapest_of_all(items, lots, limits)
    made = packed(items, lots, limits)
    if least is None:
        assert any(made.left)
    else:
        assert not any(made.left)
        assert total_cost(made.loads, lots) == least


# --- against linear programs ------------------------------------------------------------------------------


def least_by_highs(items: Sequence[Item], lots: Sequence[Lot]) -> float:
    """A lower bound for any packing: pieces and nodes may be split freely."""
    highspy = pytest.importorskip("highspy")
    highs = highspy.Highs()
    highs.silent()
    count = [highs.addVariable(lb=0, ub=lot.count, obj=lot.cost) for lot in lots]
    laid = {
        (number, lot): highs.addVariable(lb=0)
        for number, item in enumerate(items)
        for lot in range(len(lots))
        if pieces_on_empty(item, lots[lot])
    }
    for number, item in enumerate(items):
        highs.addConstr(sum(laid[it] for it in laid if it[0] == number) == item.pieces)
    for place, lot in enumerate(lots):
        here = [(items[number], laid[number, to]) for number, to in laid if to == place]
        for need, has in (("cores", lot.cores), ("gpus", lot.gpus), ("memory_bytes", lot.memory_bytes)):
            wanted = [(getattr(item, need), share) for item, share in here if getattr(item, need)]
            if wanted:
                highs.addConstr(sum(size * share for size, share in wanted) <= has * count[place])
    highs.minimize()
    return float(highs.getObjectiveValue())


@st.composite
def mixed(draw: st.DrawFn) -> tuple[list[Item], list[Lot]]:
    """Mixed work: some hundreds of pieces of several shapes, on nodes of several sizes.

    A piece is at most a tenth of a node: larger pieces may leave gaps that no packing can fill.
    """
    sizes = draw(st.lists(st.tuples(st.sampled_from([1, 1, 2, 3, 4]), st.integers(1, 16)), min_size=4, max_size=12))
    items = [an_item(draw(st.integers(50, 400)), cores, memory_bytes=memory) for cores, memory in sizes]
    lots = [
        a_lot(cores, cores * 10 + draw(st.integers(0, 5 * cores // 4)), memory_bytes=4 * cores, count=10**6)
        for cores in draw(st.lists(st.sampled_from([40, 48, 64, 96]), min_size=1, max_size=4, unique=True))
    ]
    return items, lots


@settings(max_examples=40, deadline=None)
@given(mixed())
def test_many_pieces_cost_little_more_than_the_bound_of_the_linear_program(
    work: tuple[list[Item], list[Lot]],
) -> None:
    """The bound splits pieces: if twelve and a half fit on a node, it counts twelve and a half."""
    items, lots = work
    made = packed(items, lots)
    assert not any(made.left)
    assert total_cost(made.loads, lots) <= 1.1 * least_by_highs(items, lots) + max(lot.cost for lot in lots)


def some_mix(draws: Random) -> tuple[list[Item], list[Lot]]:
    sizes = [(draws.choice([1, 1, 2, 3, 4]), draws.randint(1, 16)) for _ in range(draws.randint(4, 12))]
    items = [an_item(draws.randint(50, 400), cores, memory_bytes=memory) for cores, memory in sizes]
    lots = [
        a_lot(cores, cores * 10 + draws.randint(0, 5 * cores // 4), memory_bytes=4 * cores, count=10**6)
        for cores in draws.sample([40, 48, 64, 96], draws.randint(1, 4))
    ]
    return items, lots


def test_mixed_work_costs_within_a_twentieth_of_the_bound_taken_together() -> None:
    """Over a hundred mixes, the rounding of nodes and pieces averages out."""
    draws = Random(1)
    mixes = [some_mix(draws) for _ in range(100)]
    bound = sum(least_by_highs(items, lots) for items, lots in mixes)
    assert sum(total_cost(packed(items, lots).loads, lots) for items, lots in mixes) <= 1.025 * bound


# --- and the same again -----------------------------------------------------------------------------------


@settings(deadline=None)
@given(items_of(st.integers(5, 60)), lots_of(st.just(1000)))
def test_what_was_bought_holds_what_it_was_bought_for(items: list[Item], lots: list[Lot]) -> None:
    """The nodes boot and nothing else changes: the same work fits them, so nothing more is bought."""
    made = packed(items, lots)
    if sum(item.pieces for item in items) <= 10 or any(made.left):
        return
    count = nodes(made)
    come = [
        Lot(lot.cores, lot.gpus, lot.memory_bytes, count.get(number, 0), lot.cost, 0, bought=False)
        for number, lot in enumerate(lots)
    ]
    again = fill(items, come, fits_of(items, come))
    laid = sum(sum(load.nodes * pieces for _, pieces in load.pieces) for load in again.loads)
    assert sum(item.pieces for item in items) - laid <= 10  # few enough for an exhaustive search


def test_a_load_says_what_lies_on_each_of_its_nodes() -> None:
    (load,) = packed([an_item(100, 1)], [a_lot(4, 40)]).loads
    assert load == Load(lot=0, nodes=25, pieces=((0, 4),))


def test_few_pieces_are_searched_although_columns_of_many_lots_took_all_steps() -> None:
    case = FAMILIES["400 types, 9 jobs"](Random(9))
    items, lots = case.items(), case.lots()
    left_out = find_dominated(lots, [()] * len(lots))
    lots = [lot for number, lot in enumerate(lots) if number not in left_out]
    fits = fits_of(items, lots)
    best = exact.search(items, lots, fits, NO_LIMITS, Effort(100_000), steps_max=100_000)
    assert best is not None
    assert total_cost(pack(items, lots, fits, NO_LIMITS).loads, lots) == total_cost(best, lots)
