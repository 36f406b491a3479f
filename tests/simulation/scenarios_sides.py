"""Partitions, shorter and longer than the patience, lineages that meet again, and peers that are cut off one way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import trio

from averaging.network.memory.memory_network import LinkSpeed
from averaging.rounds.fetching.gather_results import GATHER_WITHIN_S
from protocol.ids import CommitId
from protocol.rounds.lineage.quorum import is_quorum
from tests.simulation.node import Node
from tests.simulation.scenario import CALM, PATIENCE_S, Scenario, Scene, Seen, add, expect, scenario
from tests.simulation.swarm import RUN_ID

SHORT_S = 0.75 * PATIENCE_S
LONG_S = 1.5 * PATIENCE_S
QUIET = replace(CALM, round_s=20.0, heartbeat_s=2.0, longest_interval_s=25.0)


def _sides(scene: Scene, sizes: Sequence[int]) -> list[list[Node]]:
    """The nodes, dealt to sides of these sizes."""
    nodes = list(scene.nodes)
    scene.chooser.shuffle(nodes)
    begins = [sum(sizes[:i]) for i in range(len(sizes))]
    return [nodes[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]


def _has_quorum(scene: Scene, side: list[Node]) -> bool:
    """Of a roster of everybody."""
    return is_quorum(RUN_ID, [node.peer for node in scene.nodes], [node.peer for node in side])


def _head(side: Sequence[Node]) -> CommitId:
    """The head of the one that is furthest."""
    head = max(side, key=lambda node: node.index).head
    expect(head is not None, "a side has a head")
    return head or CommitId(b"")


def _leads(scene: Scene, side: Sequence[Node]) -> bool:
    """Whether nobody has committed more tokens than this side."""
    totals = {node: scene.state(node).link.total_tokens for node in scene.nodes}
    return max(totals[node] for node in side) == max(totals.values())


# --- two and three sides ------------------------------------------------------------------------------------------------------


async def _split(scene: Scene, sizes: Sequence[int]) -> None:
    """A cut shorter than the patience makes no lineage; a longer one makes one at each side that has no quorum."""
    sides = _sides(scene, sizes)
    await scene.everybody_votes()
    strong = [side for side in sides if _has_quorum(scene, side)]
    before = scene.world.rounds()
    with scene.cut(*sides):
        await scene.sleep(SHORT_S)
    expect(not scene.world.observed.num_lone, "nobody commits alone within the patience")
    expect((scene.world.rounds() > before) == bool(strong), "the side with a quorum goes on, and only that one")
    await scene.agreement()
    await scene.everybody_votes()
    with scene.cut(*sides):
        await scene.sleep(LONG_S)
        expect(all(len(scene.heads(side)) == 1 for side in sides), "each side agrees with itself")
        expect(len({_head(side) for side in sides}) == len(sides), "each side has a lineage")
        expected = _head(strong[0]) if strong and _leads(scene, strong[0]) else None
    rosters = scene.lone_rosters()
    expect(all(any(roster <= set(side) for side in sides if side not in strong) for roster in rosters), "lone by side")
    await scene.agreement()
    if expected is not None:
        expect(scene.is_followed(expected), "a quorum with as much work as anybody is followed")


for _sizes in ((5, 3), (4, 4), (3, 3, 2), (1, 1)):
    _name = f"split-{'-'.join(map(str, _sizes))}"
    add(Scenario(_name, partial(_split, sizes=_sizes), sum(_sizes), QUIET, loses_nothing=True))


@scenario(5, QUIET, loses_nothing=True)
async def split_again_during_resync(scene: Scene) -> None:
    """Three times the cut comes back while the losing side brings the other lineage here; the third time in three."""
    one, two = _sides(scene, (3, 2))
    await scene.everybody_votes()
    resyncs = await _parted(scene, (one, two))
    for sides in ((one, two), (one, two), (one[:2], one[2:], two)):
        await scene.happened(resyncs, "a lineage being brought here")
        resyncs = await _parted(scene, sides)
        expect(len({_head(side) for side in sides}) >= 2, "the sides have parted again")
    await scene.agreement()


async def _parted(scene: Scene, sides: Sequence[Sequence[Node]]) -> trio.Event:
    """A cut until each side has a lineage; returned is the first step after it at which somebody is bringing another lineage here.
    That takes a fraction of a second: who only looks now and then misses it.
    """
    with scene.cut(*sides):
        await scene.sleep(LONG_S)
        return scene.when(lambda seen: seen.after.switching is not None)


@scenario(5, QUIET, loses_nothing=True)
async def half_healed(scene: Scene) -> None:
    """Three lineages; first two sides meet, then the third one appears."""
    sides = _sides(scene, (2, 2, 1))
    await scene.everybody_votes()
    with scene.cut(sides[2], sides[0] + sides[1]):
        with scene.cut(sides[0], sides[1]):
            await scene.sleep(LONG_S)
        expect(len({_head(side) for side in sides}) == 3, "three lineages")
        await scene.agreement(sides[0] + sides[1])
        await scene.rounds(1, sides[0] + sides[1])
    await scene.agreement()


@scenario(7, QUIET)
async def preferred_and_gone(scene: Scene) -> None:
    """Three lineages. Everybody has heard of the one with most work when all who made it die, and their results with them: the two
    others become one without it. When it comes back, with what it had, all agree once more.
    """
    best, *others = _sides(scene, (5, 1, 1))
    rest = [node for side in others for node in side]
    await scene.everybody_votes()
    with scene.cut(*others):
        with scene.cut(best, rest):
            await scene.sleep(LONG_S)
        head, kept = _head(best), [_without_results(node) for node in best]
        known = [scene.when(partial(_knows, node=node, commit=head)) for node in rest]
        for heard in known:
            await scene.happened(heard, "word of the preferred lineage")
        for node in best:
            node.crash()
    expect(len({_head(side) for side in others}) == 2, "two lineages are left")
    await scene.agreement(rest, within_s=2 * GATHER_WITHIN_S)
    expect(not scene.is_followed(head), "what cannot be had is not followed")
    for node, files in zip(best, kept, strict=True):
        node.disk.files.update(files)
    scene.boot(*best)
    await scene.agreement()


def _without_results(node: Node) -> dict[str, bytes]:
    """Takes the results off its disk and returns them by their names."""
    names = [name for name in node.disk.files if name.startswith("results/")]
    return {name: node.disk.files.pop(name) for name in names}


def _knows(seen: Seen, node: Node, commit: CommitId) -> bool:
    return seen.node is node and commit in seen.after.tree.nodes


# --- lineages of almost the same work -----------------------------------------------------------------------------------------


@scenario(5, replace(CALM, num_elements=1024), is_even=True)
async def near_equal_lineages(scene: Scene) -> None:
    """Two sides without a quorum, alike in everything, meet while one of them is about to overtake; lines are so slow that it takes
    rounds to bring the other lineage here. Nobody is sent back and forth.
    """
    one, two, last = scene.nodes[:2], scene.nodes[2:4], scene.nodes[4]
    await scene.everybody_votes()
    fork = scene.state(last).link
    bytes_per_s = scene.chooser.choice((1_000.0, 3_000.0, 10_000.0))
    for node in scene.nodes:
        scene.world.swarm.speeds[node.peer] = LinkSpeed(0.02, bytes_per_s)
    last.crash()

    def is_overtaking(seen: Seen) -> bool:
        sides = (one, two) if seen.node in one else (two, one)
        mine, theirs = (max(scene.state(node).link.total_tokens for node in side) for side in sides)
        are_far = all(max(node.index for node in side) >= fork.index + 3 for side in sides)
        return seen.stage == "settling" and are_far and 0 <= theirs - mine < fork.target_tokens

    with scene.cut(one, two):
        await scene.happened(scene.when(is_overtaking), "two lineages, one about to overtake the other", 400.0)
        expect({frozenset(one), frozenset(two)} <= set(scene.lone_rosters()), "two lone lineages")
    await scene.agreement(within_s=300.0)
    expect(max(scene.switches.values(), default=0) <= 2, f"nobody is sent back and forth; {dict(scene.switches)}")
    scene.boot(last)
    await scene.back(last)


NUM_MISSED = 10


@scenario(4, CALM, is_even=True)
async def more_work_of_one_alone(scene: Scene) -> None:
    """One peer alone does more work than all others, who are a quorum: nobody follows it, nor fetches what it did."""
    heavy = scene.nodes[0]
    await scene.everybody_votes()
    others = scene.without(heavy)
    heavy.crash()
    heavy.tokens_per_s *= 20
    await scene.agreement(others)
    scene.boot(heavy)
    await scene.back(heavy)
    await scene.everybody_votes()
    fork = scene.state(heavy).link
    with scene.cut([heavy], others):
        await scene.until(lambda: heavy.index >= fork.index + 5, "lone commits", 200.0)
        await scene.until(
            lambda: scene.work_class(heavy, fork) > scene.work_class(others[0], fork), "the heavier lineage", 200.0
        )
        mine = scene.state(heavy).link
    await scene.agreement()
    expect(not scene.is_followed(mine.commit), "what one did alone is worth less than what a quorum did")
    expect(set(scene.switches) == {heavy.name}, "nobody but itself has changed lineages")


@scenario(5, replace(CALM, num_elements=1024, round_s=8.0), is_even=True)
async def heavier_lineage_out_of_reach(scene: Scene) -> None:
    """Of two pairs that went on without a quorum one has more work than the other, and a thin line; it dies when they have nine
    tenths of it.
    """
    heavy, mate, gone, *others = scene.nodes
    await scene.everybody_votes()
    heavy.crash()
    heavy.tokens_per_s *= 20
    await scene.agreement(scene.without(heavy))
    scene.boot(heavy)
    await scene.back(heavy)
    await scene.everybody_votes()
    fork = scene.state(heavy).link
    gone.crash()
    with scene.cut([heavy, mate], others):
        await scene.until(lambda: heavy.index >= fork.index + NUM_MISSED, "lone commits", 200.0)
        # classes are powers of two, so that it may be in the others' for a while
        await scene.until(
            lambda: scene.work_class(heavy, fork) > scene.work_class(others[0], fork), "the heavier lineage", 200.0
        )
        mine = scene.state(heavy).link
        expect(sorted(map(len, scene.lone_rosters())) == [2, 2], "both lineages are lone ones")
        for node in (heavy, mate):
            scene.world.swarm.speeds[node.peer] = LinkSpeed(0.05, 600.0)
        missed = [part for known in scene.lineage(heavy)[fork.index :] for part in known.record.slices]
    before = max(node.index for node in others)

    def is_almost_there() -> bool:
        names = {part.result_hash.hex() for part in missed}
        held = [sum(name.rpartition("/")[2] in names for name in node.disk.files) for node in others]
        return max(held) >= 0.9 * len(missed)

    await scene.until(is_almost_there, "nine tenths of it", 200.0)
    expect(not scene.switches, "nobody has changed lineages before all of it was there")
    heavy.crash()
    mate.crash()
    await scene.rounds(2, others)
    expect(not scene.switches, "nobody has changed to a lineage that is not all there")
    expect(max(node.index for node in others) >= before + 2, "the others went on with their own lineage")
    scene.world.swarm.speeds.clear()
    scene.boot(heavy, mate, gone)
    await scene.agreement()
    expect(scene.is_followed(mine.commit), "more work is followed, however late")


# --- one way ------------------------------------------------------------------------------------------------------------------

SLOW = replace(CALM, round_s=600.0, longest_interval_s=720.0, heartbeat_s=36.0, list_every_s=360.0, converge_s=5400.0)
AN_HOUR_S = 3600.0
MANY_ROUNDS = 0.7 * AN_HOUR_S / SLOW.longest_interval_s


async def _one_way(scene: Scene, is_deaf: bool) -> None:
    """A peer that sends and hears nobody, or the other way round, for an hour: the others do not care."""
    odd = scene.chooser.choice(scene.nodes)
    await scene.everybody_votes()
    others = scene.without(odd)
    before = max(node.index for node in others)
    with scene.cut(*((others, [odd]) if is_deaf else ([odd], others)), both_ways=False):
        await scene.sleep(AN_HOUR_S)
        rounds = max(node.index for node in others) - before
        expect(rounds >= MANY_ROUNDS, f"the others go on; they came {rounds} rounds far")
        expected = _head(others)
    expect(all(roster == {odd} for roster in scene.lone_rosters()), "nobody but the odd one commits alone")
    await scene.agreement(within_s=SLOW.converge_s)
    expect(scene.is_followed(expected), "the lineage of the many is the one")


add(Scenario("deaf-for-long", partial(_one_way, is_deaf=True), 4, SLOW))
add(Scenario("mute-for-long", partial(_one_way, is_deaf=False), 4, SLOW))


@scenario(4, SLOW)
async def pair_that_cannot_meet(scene: Scene) -> None:
    """Two who hear all others but not each other, for an hour: rounds go on, and count both."""
    one, two = scene.chooser.sample(scene.nodes, 2)
    await scene.everybody_votes()
    before = scene.world.rounds()
    with scene.cut([one], [two]):
        await scene.sleep(AN_HOUR_S)
    expect(not scene.world.observed.num_lone, "nobody commits alone")
    late = [known for known in scene.lineage(scene.without(one, two)[0]) if known.index > before]
    expect(len(late) >= MANY_ROUNDS, f"rounds go on; there were {len(late)}")
    for node in (one, two):
        expect(any(node.peer in known.counted for known in late), f"{node.name} is counted meanwhile")
