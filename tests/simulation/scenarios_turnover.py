"""The members change: all the time, by half at once, and until only newcomers are left."""

from __future__ import annotations

from dataclasses import replace

import trio

from averaging.network.memory.memory_network import LinkSpeed
from averaging.rounds.parting import PARTING_S
from averaging.rounds.unit_service import LEAVE_WITHIN_S
from protocol.rounds.orders import BeginExchange
from tests.simulation import accounting
from tests.simulation.node import Node
from tests.simulation.scenario import CALM, PATIENCE_S, Scene, expect, scenario

NUM_CHANGES = 4
NUM_MOMENTS = 10
COUNTED = "counted at ten moments: "
"""In the trace, before the shares of the work that counted."""

THIN_BYTES_PER_S = 2_000.0
GONE_S = 10.0
"""So long everybody who is missing must refuse connections before the others go on without a quorum."""


@scenario(6, replace(CALM, num_elements=1024), is_even=True)
async def turnover_with_slow_joiners(scene: Scene) -> None:
    """After each round two of six go, with a word or without, and two come whose lines are so thin that they need rounds to get here:
    rounds go on, and when it is over all are together.
    """
    await scene.everybody_votes()
    for _ in range(NUM_CHANGES):
        here = [node for node in scene.world.live_nodes() if node.head is not None and node.index > 0]
        going = scene.chooser.sample(here, min(2, len(here) - 2))
        for node in going:
            scene.chooser.choice((node.leave, node.crash))()
        for _ in range(2):
            joiner = scene.world.add_node()
            joiner.tokens_per_s = scene.world.profile.tokens_per_s
            scene.world.swarm.speeds[joiner.peer] = LinkSpeed(0.1, scene.chooser.choice((500.0, 1_000.0)))
            scene.boot(joiner)
        staying = scene.without(*going)
        await scene.rounds(1, staying, within_s=3 * PATIENCE_S)
    scene.world.swarm.speeds.clear()


@scenario(6, num_seeds=2)
async def half_vanishes_with_the_tie(scene: Scene) -> None:
    """Half of the roster is gone at once, the one that breaks ties included: the others are sure of it soon, and go on."""
    await scene.everybody_votes()
    tie = scene.tie_holder(scene.nodes)
    await _half_vanishes(scene, [tie, *scene.chooser.sample(scene.without(tie), 2)])
    expect(scene.lone_rosters() == [frozenset(scene.world.live_nodes())], "once without a quorum, then with one")


@scenario(6, num_seeds=2)
async def half_vanishes(scene: Scene) -> None:
    """Half of the roster is gone at once, without the one that breaks ties: that is a quorum still."""
    await scene.everybody_votes()
    await _half_vanishes(scene, scene.chooser.sample(scene.without(scene.tie_holder(scene.nodes)), 3))
    expect(not scene.world.observed.num_lone, "nobody commits without a quorum")


async def _half_vanishes(scene: Scene, vanishing: list[Node]) -> None:
    if scene.chooser.random() < 0.5:
        await scene.happened(scene.when(lambda seen: seen.orders(BeginExchange)), "an exchange")
    for node in vanishing:
        node.crash()
    await scene.rounds(2, scene.world.live_nodes(), within_s=GONE_S + 2 * scene.world.profile.longest_interval_s)


@scenario(6, num_late=2)
async def only_newcomers_stay(scene: Scene) -> None:
    """All founders say goodbye as soon as two newcomers, who have no vote yet, know the head: these two go on."""
    *founders, one, two = scene.nodes
    scene.boot(one, two)
    await scene.back(one, two)
    for node in founders:
        node.leave()
        await scene.sleep(scene.chooser.choice((0.0, 0.0, 0.2)))
    await scene.until(lambda: all(node.has_left for node in founders), "four goodbyes")
    await scene.rounds(2, (one, two), within_s=PATIENCE_S + 3 * scene.world.profile.longest_interval_s)


@scenario(5, replace(CALM, num_elements=1024), is_even=True)
async def asked_to_go_at_ten_moments(scene: Scene) -> None:
    """At ten moments of a round one of five is asked to go, and has five seconds. A commit counts what it had trained until then,
    at nine moments or more. An upload takes a third of the round, so some of the moments lie in its exchange.
    """
    await scene.everybody_votes()
    for node in scene.nodes:
        scene.world.swarm.speeds[node.peer] = LinkSpeed(0.05, THIN_BYTES_PER_S)
    await scene.rounds(2)
    found = [await _counted_after_going(scene, (number + 0.5) / NUM_MOMENTS) for number in range(NUM_MOMENTS)]
    scene.world.swarm.speeds.clear()
    shares = " ".join(f"{share:.2f}" for share in found)
    scene.world.trace.add(f"{COUNTED}{shares}")
    expect(sum(share == 1.0 for share in found) >= NUM_MOMENTS - 1, f"the work of nine of ten counts; it was {shares}")


async def _counted_after_going(scene: Scene, moment: float) -> float:
    """Ask a peer to go at this moment, as a share of a round. Returns the share of its ready work that is counted."""
    leaver = scene.chooser.choice(scene.world.live_nodes())
    await scene.back(leaver, within=100)
    index = leaver.index
    await scene.until(lambda: leaver.head is not None and leaver.index > index, "a commit")
    await scene.sleep(moment * scene.world.profile.round_s)
    trainer = leaver.trainer
    ready = list(trainer.ready) if trainer is not None else []
    asked_s = trio.current_time()
    leaver.leave()
    await scene.until(lambda: leaver.has_left, "a goodbye")
    expect(trio.current_time() - asked_s <= PARTING_S + LEAVE_WITHIN_S, "it goes in time")
    others = scene.without(leaver)
    await scene.rounds(2, others)
    head = scene.state(max(others, key=lambda node: node.index)).link.commit
    counted = scene.world.observed.counted(leaver.peer, head)
    scene.boot(leaver)
    return accounting.count(accounting.overlap(ready, accounting.union(counted))) / max(1, accounting.count(ready))


@scenario(5)
async def one_of_five_is_reachable(scene: Scene) -> None:
    """Four are behind routers: the fifth one reduces everything and opens what it can, and all are counted."""
    reachable = scene.chooser.choice(scene.nodes)
    for node in scene.nodes:
        node.crash()
        node.is_inbound_reachable = node is reachable
    scene.boot(*scene.nodes)
    await scene.everybody_votes()
    before = scene.world.rounds()
    await scene.rounds(4)
    late = [known for known in scene.lineage(reachable) if known.index > before + 1]
    expect(all({part.reducer for part in known.record.slices} == {reachable.peer} for known in late), "one reducer")
    expect(all(len(known.counted) == len(scene.nodes) for known in late), "all are counted")


@scenario(5, num_seeds=2)
async def two_of_five_come_back(scene: Scene) -> None:
    """The power goes for everybody, and comes back for two: they take up what they hold, learn that the others refuse connections, and
    go on, once without a quorum and then with one. The other three come back to them later.
    """
    await scene.everybody_votes()
    survivors = scene.chooser.sample(scene.nodes, 2)
    rest = scene.without(*survivors)
    if scene.chooser.random() < 0.5:
        await scene.happened(scene.when(lambda seen: seen.orders(BeginExchange)), "an exchange")
    for node in scene.nodes:
        node.crash()
    await scene.sleep(1.0)
    for node in survivors:
        scene.boot(node)
        await scene.sleep(scene.chooser.choice((0.0, 3.0)))
    await scene.rounds(2, survivors, within_s=GONE_S + scene.world.profile.longest_interval_s)
    expect(scene.lone_rosters() == [frozenset(survivors)], "the two commit once without a quorum")
    head = scene.state(survivors[0]).link.commit
    scene.boot(*rest)
    await scene.back(*rest)
    expect(scene.is_followed(head), "the three follow what the two have made")
