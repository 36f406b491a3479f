"""Leaders that fall silent or die at the worst moment: between votes, commits, and what is told about them."""

from __future__ import annotations

from itertools import permutations

from protocol.ids import CommitId
from protocol.rounds.messages import Committed, Promise
from protocol.rounds.state import Applied
from tests.simulation.node import Node
from tests.simulation.scenario import Scene, Seen, expect, scenario


def _check_one_commit(scene: Scene, base: CommitId, commit: CommitId | None) -> None:
    """On this base there is this commit of a quorum, and all stand on it or after it."""
    certified = scene.world.observed.certified.get(base)
    expect(certified is not None and certified == commit, f"the base {base.hex()[:8]} has the commit that was decided")
    expect(commit is not None and scene.is_followed(commit), "all follow it")


@scenario(5, num_seeds=2)
async def opener_frozen_before_it_tells(scene: Scene) -> None:
    """The opener applies the commit and freezes before it tells anybody; it thaws in the middle of its successor's settle."""
    await scene.everybody_votes()
    decided: list[Seen] = []

    def has_applied_its_own(seen: Seen) -> bool:
        record = seen.event.link.record if isinstance(seen.event, Applied) else None
        return record is not None and record.ballot.peer == seen.node.peer

    def freeze(seen: Seen) -> None:
        decided.append(seen)
        seen.node.freeze()

    await scene.happened(scene.when(has_applied_its_own, freeze), "a commit that only its leader knows")
    opener, base, commit = decided[0].node, decided[0].before.link.commit, decided[0].after.link.commit
    thawed = scene.when(
        lambda seen: seen.stage == "settling" and seen.before.link.commit == base, lambda seen: opener.thaw()
    )
    await scene.happened(thawed, "a successor that settles")
    await scene.back(opener)
    await scene.agreement()
    _check_one_commit(scene, base, commit)


@scenario(4, num_seeds=2)
async def power_cut_after_the_quorum(scene: Scene) -> None:
    """Leader and a reducer die when the last ack that was needed arrives, then the power goes; all start again, in any order."""
    await scene.everybody_votes()
    decided: list[Seen] = []

    def kill(seen: Seen) -> None:
        decided.append(seen)
        record = seen.before.open.leading
        reducers = [part.reducer for part in seen.before.open.proposal.slices] if seen.before.open.proposal else []
        others = [peer for peer in reducers if peer != seen.node.peer]
        expect(record is not None and bool(others), "a leader with reducers")
        scene.node(scene.chooser.choice(others)).crash()
        seen.node.crash()

    await scene.happened(scene.when(lambda seen: _has_quorum_of_acks(seen), kill), "a quorum of acks")
    led, base = decided[0].after.open.leading, decided[0].before.link.commit
    await scene.sleep(scene.chooser.choice((0.0, 0.01, 0.5, 3.0)))
    for node in scene.world.live_nodes():
        node.crash()
    await scene.sleep(1.0)
    orders = list(permutations(scene.nodes))
    for node in orders[scene.world.seed % len(orders)]:
        scene.boot(node)
        await scene.sleep(scene.chooser.choice((0.1, 3.0, 8.0)))
    await scene.agreement()
    await scene.until(lambda: base in scene.world.observed.certified, "a commit on that base")
    await scene.agreement()
    _check_one_commit(scene, base, led.commit if led is not None else None)


def _has_quorum_of_acks(seen: Seen) -> bool:
    """The leader tells itself of the certificate: the first sign that there is one."""
    led = seen.after.open.leading
    return led is not None and led.stage == "settling" and seen.sends(Committed)


@scenario(4, num_seeds=2)
async def acks_split_in_two(scene: Scene) -> None:
    """Half of the voters ack, without the one that breaks ties; the other half takes over and commits something else, and the old
    settle reaches it after it has promised.
    """
    await scene.everybody_votes()
    tie = scene.tie_holder(scene.nodes)
    settled: list[Seen] = []
    settling = scene.when(lambda seen: seen.stage == "settling" and seen.node is not tie, settled.append)
    await scene.happened(settling, "a leader that does not break ties")
    leader, base = settled[0].node, settled[0].before.link.commit
    rest = [node for node in scene.nodes if node not in (leader, tie)]
    first, second = [leader, rest[0]], [tie, rest[1]]
    with scene.held([leader], second) as let_go, scene.cut(first[1:], second):
        promised = scene.when(lambda seen: seen.node in second and seen.sends(Promise), lambda seen: let_go())
        with scene.cut(second, [leader], both_ways=False):
            await scene.happened(promised, "a promise of the other half")
            await scene.until(lambda: base in scene.world.observed.certified, "a commit of the other half")
    led = settled[0].after.open.leading
    commit = scene.world.observed.certified[base]
    expect(led is not None and led.commit != commit, "it is not what the first half had acked")
    await scene.back(*first)
    await scene.agreement()
    _check_one_commit(scene, base, commit)


@scenario(5, num_seeds=2)
async def three_attempts_on_one_base(scene: Scene) -> None:
    """The first leader freezes and the second one dies with half of the results in; the third one commits, and then the first one
    goes on where it was.
    """
    await scene.everybody_votes()
    first = await _leader_at_half(scene, [])
    base = scene.state(first).link.commit
    first.freeze()
    second = await _leader_at_half(scene, [first])
    second.crash()
    await scene.sleep(scene.chooser.choice((0.5, 3.0)))
    scene.boot(second)

    def is_third(seen: Seen) -> bool:
        return seen.stage == "settling" and seen.node is not first and seen.before.link.commit == base

    await scene.happened(scene.when(is_third, lambda seen: first.thaw()), "a third attempt that settles")
    await scene.until(lambda: base in scene.world.observed.certified, "a commit on that base")
    commit = scene.world.observed.certified[base]
    ballot = scene.world.observed.commits[commit].record.ballot
    expect(
        ballot.attempt >= 2 and ballot.peer != first.peer, f"a third leader's record; it is of attempt {ballot.attempt}"
    )
    await scene.back(first)
    await scene.agreement()
    _check_one_commit(scene, base, commit)


async def _leader_at_half(scene: Scene, others: list[Node]) -> Node:
    """Who leads an attempt and has half of its results, but not all."""
    found: list[Node] = []

    def is_half(seen: Seen) -> bool:
        opened = seen.after.open
        if opened.leading is None or opened.proposal is None or opened.leading.stage != "collecting":
            return False
        is_its_own = opened.proposal.ballot == opened.leading.ballot
        number, needed = len(opened.results), len(opened.proposal.slices)
        return is_its_own and seen.node not in others and 2 * number >= needed and number < needed

    await scene.happened(scene.when(is_half, lambda seen: found.append(seen.node)), "half of the results")
    return found[0]
