"""Links that flap, that are too thin, or that reach only some: nobody else waits for long, and no work is lost or counted twice."""

from __future__ import annotations

from dataclasses import replace

from averaging.network.memory.memory_network import LinkSpeed
from protocol.rounds.orders import BeginExchange
from protocol.rounds.schedule.proposal import consumed_tokens, covered_chunks
from tests.simulation import accounting
from tests.simulation.invariants import KnownCommit
from tests.simulation.node import Node
from tests.simulation.scenario import CALM, Scene, Seen, expect, scenario

FLAP_S = 2.0
NUM_FLAPS = 6


@scenario(5)
async def flapping_peer(scene: Scene) -> None:
    """Two seconds here, two seconds away, as the opener, as a reducer, and as a sender with a thin line: rounds go on."""
    await scene.everybody_votes()
    flapping = scene.opener()
    others = scene.without(flapping)
    before = max(node.index for node in others)
    roles = set[str]()

    def note_roles(seen: Seen) -> None:
        opened, is_thin = seen.after.open, flapping.peer in scene.world.swarm.speeds
        if seen.node is flapping and opened.leading is not None:
            roles.add("opener")
        if opened.proposal is not None and flapping.peer in {part.reducer for part in opened.proposal.slices}:
            roles.add("reducer")
        if seen.node is flapping and is_thin and seen.orders(BeginExchange):
            roles.add("slow sender")

    scene.hooks.append(note_roles)
    for is_thin in (False, True):
        if is_thin:
            scene.world.swarm.speeds[flapping.peer] = LinkSpeed(0.3, 2_000.0)
        for _ in range(NUM_FLAPS):
            with scene.cut([flapping], others):
                await scene.sleep(FLAP_S)
            await scene.sleep(FLAP_S)
    expect(roles == {"opener", "reducer", "slow sender"}, f"it was everything in turn; it was {sorted(roles)}")
    lasted_s = 4 * NUM_FLAPS * FLAP_S
    rounds = max(node.index for node in others) - before
    expect(rounds >= lasted_s / scene.world.profile.longest_interval_s, f"rounds go on; there were {rounds}")
    expect(not scene.world.observed.num_lone, "nobody commits alone")
    scene.world.swarm.speeds.clear()
    await scene.back(flapping)


@scenario(4, is_even=True)
async def heaviest_is_always_late(scene: Scene) -> None:
    """One peer trains seven tenths of all tokens behind a line that is too thin for the deadlines that suit the others: rounds do not
    wait for it, and as it is learned how long its upload takes it is counted.
    """
    heavy = scene.chooser.choice(scene.nodes)
    heavy.crash()
    heavy.tokens_per_s *= 7
    others = scene.without(heavy)
    await scene.rounds(2, others)
    scene.boot(heavy)
    await scene.back(heavy)
    before = scene.world.rounds()
    with scene.thin([heavy], others, 100.0):
        await scene.rounds(2, others)

        def is_counted() -> bool:
            late = [known for known in scene.lineage(others[0]) if known.index > before + 1]
            return any(heavy.peer in known.counted for known in late)

        await scene.until(is_counted, "the heaviest is counted", 300.0)
    expect(not scene.world.observed.num_lone, "nobody commits alone")


# --- a part of the vector -----------------------------------------------------------------------------------------------------

NUM_PARTIAL = 5


@scenario(6, replace(CALM, round_s=20.0, longest_interval_s=20.0), num_late=1, is_even=True)
async def part_of_the_slices(scene: Scene) -> None:
    """A member's upload reaches a part of the reducers, in five rounds; each time it is credited in proportion and offers the rest
    again. Then it leaves, and another one joins in the same round.
    """
    *members, joiner = scene.nodes
    await scene.everybody_votes()
    odd = scene.chooser.choice(members)
    reached = scene.chooser.sample([node for node in members if node is not odd], 2)
    missed = [node for node in members if node is not odd and node not in reached]
    before = scene.world.rounds()
    with scene.thin([odd], missed, 1.0):
        await scene.until(lambda: len(_partial(scene, odd, before)) >= NUM_PARTIAL, "five partial rounds", 600.0)
    for known in _partial(scene, odd, before):
        entry = known.record.contributor(odd.peer)
        covered = sum(stop - first for first, stop in covered_chunks(known.record, odd.peer))
        expect(entry is not None and 0 < covered < 8, "a part of the vector is counted")
        expected = entry.tokens * covered // 8 if entry is not None else 0
        expect(consumed_tokens(known.record, odd.peer) == expected, "in proportion")
        expect(accounting.count(known.counted[odd.peer]) == expected, "as tokens")
    odd.leave()
    scene.boot(joiner)
    await scene.until(lambda: odd.has_left, "its leave")
    await scene.back(joiner)
    expect(not scene.world.observed.num_lone, "nobody commits alone")


def _partial(scene: Scene, odd: Node, before: int) -> list[KnownCommit]:
    """The commits that count a part of its contribution."""
    other = next(node for node in scene.world.live_nodes() if node is not odd)
    late = [known for known in scene.lineage(other) if known.index > before and odd.peer in known.counted]
    return [k for k in late if any(o.peer == odd.peer for part in k.record.slices for o in part.omitted)]
