"""Leaders that fall silent or die at the worst moment: between votes, commits, and what is told about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise, permutations
from typing import Final

from averaging.network.seams.interfaces import Snapshot
from protocol.ids import CommitId, PeerId
from protocol.rounds.events import MessageArrived
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.messages import Ack, Committed, Promise, Settle
from protocol.rounds.messages.record import Ballot
from protocol.rounds.orders import GatherBytes, LogAck, Send
from tests.simulation.node import Node
from tests.simulation.scenario import Scene, Seen, expect, scenario

ORDER_STRIDE: Final = 8
"""A seed starts four peers again in every eighth of their 24 orders: eight seeds have had all."""


def _check_one_commit(scene: Scene, base: CommitId, commit: CommitId | None) -> None:
    """On this base there is this commit of a quorum, and all stand on it or after it."""
    certified = scene.world.observed.certified.get(base)
    expect(certified is not None and certified == commit, f"the base {base.hex()[:8]} has the commit that was decided")
    expect(commit is not None and scene.is_followed(commit), "all follow it")


@scenario(5)
async def opener_frozen_before_it_tells(scene: Scene) -> None:
    """The opener makes the certificate and freezes before it tells anybody; it thaws in the middle of its successor's settle."""
    await scene.everybody_votes()
    decided: list[Seen] = []

    def has_decided_its_own(seen: Seen) -> bool:
        proposal, is_new = seen.before.open.proposal, seen.before.open.committing is None
        is_ours = proposal is not None and proposal.ballot.peer == seen.node.peer
        return is_ours and is_new and seen.after.open.committing is not None

    def freeze(seen: Seen) -> None:
        decided.append(seen)
        seen.node.freeze()

    await scene.happened(scene.when(has_decided_its_own, freeze), "a commit that only its leader knows")
    opener, base, commit = decided[0].node, decided[0].before.link.commit, decided[0].after.open.committing
    thawed = scene.when(
        lambda seen: seen.stage == "settling" and seen.before.link.commit == base, lambda seen: opener.thaw()
    )
    await scene.happened(thawed, "a successor that settles")
    await scene.back(opener)
    await scene.until(lambda: base in scene.world.observed.certified, "a commit on that base")
    await scene.agreement()
    _check_one_commit(scene, base, commit)


# --- power cuts ---------------------------------------------------------------------------------------------------------------


@scenario(4)
async def power_cut_after_the_quorum(scene: Scene) -> None:
    """Leader and a reducer die when the last ack that was needed arrives, then the power goes; all start again, in any order."""
    for order in _orders(scene):
        await scene.everybody_votes()
        leader = scene.opener()
        other = scene.chooser.choice(scene.without(leader))
        await _power_cut(scene, [leader, other], order)


@scenario(4)
async def only_holders_die_after_the_quorum(scene: Scene) -> None:
    """The same, where leader and reducer are half of the roster and break the tie: their two acks are the quorum, and nobody else ever
    had that reducer's result. While they are down nobody can supply it; it is the commit all the same.
    """
    for order in _orders(scene):
        await scene.everybody_votes()
        while any(scene.state(node).open.proposal is not None for node in scene.nodes):
            await scene.rounds(1)
            await scene.everybody_votes()
        leader, tie = scene.opener(), scene.tie_holder(scene.nodes)
        holder = tie if tie is not leader else scene.chooser.choice(scene.without(leader))
        both, rest = [leader, holder], scene.without(leader, holder)
        with ExitStack() as links:
            links.enter_context(scene.thin([holder], rest, 1.0))
            scene.when(
                lambda seen: seen.node is leader and seen.stage == "settling",  # noqa: B023 - of this turn
                lambda seen: links.enter_context(scene.cut(both, rest)),  # noqa: B023
            )
            await _power_cut(scene, both, order, only_holders=links)


def _orders(scene: Scene) -> list[tuple[int, ...]]:
    """The orders of this seed: places in a list of leader, reducer, and the other two."""
    return list(permutations(range(len(scene.nodes))))[scene.world.seed % ORDER_STRIDE :: ORDER_STRIDE]


async def _power_cut(
    scene: Scene, dying: Sequence[Node], order: Sequence[int], *, only_holders: ExitStack | None = None
) -> None:
    """The leader, first of the dying, comes to a quorum and dies with the other one; then the rest; then all start in this order. The
    links that make the dying the only holders heal while the power is off.
    """
    base, nodes = scene.nodes[0].head, [*dying, *scene.without(*dying)]
    decided: list[Seen] = []

    def kill(seen: Seen) -> None:
        decided.append(seen)
        if only_holders is not None:
            holders = _holders(scene, seen, dying[1])
            expect(
                holders == set(dying), f"nobody but these two has that result; {[node.name for node in holders]} have"
            )
        for node in dying:
            node.crash()

    is_it = scene.when(lambda seen: seen.before.link.commit == base and _has_quorum_of_acks(seen), kill)
    await scene.happened(is_it, "a quorum of acks")
    expect(decided[0].node is dying[0], "the first opener leads")
    led = decided[0].after.open.leading
    await scene.sleep(scene.chooser.choice((0.0, 0.01, 0.5, 3.0)))
    for node in scene.world.live_nodes():
        node.crash()
    if only_holders is not None:
        only_holders.close()
    await scene.sleep(1.0)
    for place in order:
        scene.boot(nodes[place])
        await scene.sleep(scene.chooser.choice((0.1, 3.0, 8.0)))
    await scene.agreement()
    await scene.until(lambda: base in scene.world.observed.certified, "a commit on that base")
    await scene.agreement()
    _check_one_commit(scene, base or CommitId(b""), led.commit if led is not None else None)


def _holders(scene: Scene, seen: Seen, reducer: Node) -> set[Node]:
    """On whose disk the result of this reducer is."""
    results = [header for header in seen.after.open.results.values() if header.reducer == reducer.peer]
    expect(bool(results), "it reduced a slice")
    names = [f"results/{seen.before.link.commit.hex()}/{header.result_hash.hex()}" for header in results]
    return {node for node in scene.nodes if any(name in node.disk.files for name in names)}


def _has_quorum_of_acks(seen: Seen) -> bool:
    """The leader tells itself of the certificate: the first sign that there is one."""
    led = seen.after.open.leading
    return led is not None and led.stage == "settling" and seen.sends(Committed)


def _promises_another(seen: Seen) -> bool:
    """Whether it promises the ballot of another peer; a leader tells itself of its own promise, too."""
    sent = [order for order in seen.step.actions if isinstance(order, Send) and isinstance(order.message, Promise)]
    return any(order.to != (seen.node.peer,) for order in sent)


@scenario(4)
async def acks_split_in_two(scene: Scene) -> None:
    """Half of the voters ack, without the one that breaks ties; the other half takes over and commits something else, and the old
    settle reaches it after it has promised.
    """
    await scene.everybody_votes()
    tie = scene.tie_holder(scene.nodes)
    settled: list[Seen] = []
    let_go: list[Callable[[], None]] = []
    with ExitStack() as links:

        def settles(seen: Seen) -> None:
            settled.append(seen)
            rest = [node for node in scene.nodes if node not in (seen.node, tie)]
            let_go.append(links.enter_context(scene.held([seen.node], [tie, rest[1]])))

        settling = scene.when(lambda seen: seen.stage == "settling" and seen.node is not tie, settles)
        await scene.happened(settling, "a leader that does not break ties")
        leader, base = settled[0].node, settled[0].before.link.commit
        rest = [node for node in scene.nodes if node not in (leader, tie)]
        first, second = [leader, rest[0]], [tie, rest[1]]
        links.enter_context(scene.cut(first[1:], second))
        promised = scene.when(lambda seen: seen.node in second and _promises_another(seen), lambda seen: let_go[0]())
        with scene.cut(second, [leader], both_ways=False):
            await scene.happened(promised, "a promise of the other half")
            await scene.until(lambda: base in scene.world.observed.certified, "a commit of the other half")
    led = settled[0].after.open.leading
    commit = scene.world.observed.certified[base]
    expect(led is not None and led.commit != commit, "it is not what the first half had acked")
    await scene.back(*first)
    await scene.agreement()
    _check_one_commit(scene, base, commit)


# --- attempts -----------------------------------------------------------------------------------------------------------------


@scenario(5)
async def three_attempts_on_one_base(scene: Scene) -> None:
    """Nothing that the first leader says comes through once it settles; the second one dies with half of its results, and a member
    starts again; the third one commits, each with other reducers. The first one's proposal comes last, and nobody acks it.
    """
    await scene.everybody_votes()
    base = scene.nodes[0].head
    reducers = _note_reducers(scene, base)
    settled: list[Seen] = []
    let_go: list[Callable[[], None]] = []
    with ExitStack() as links:

        def settles(seen: Seen) -> None:
            settled.append(seen)
            let_go.append(links.enter_context(scene.held([seen.node], scene.without(seen.node))))

        await scene.happened(scene.when(lambda seen: seen.stage == "settling", settles), "a leader settles")
        first, led = settled[0].node, settled[0].after.open.leading
        second = await _leader_at_half(scene, [first])
        second.crash()
        restarting = scene.chooser.choice(scene.without(first))
        restarting.crash()
        proposed = scene.when(lambda seen: seen.stage == "collecting" and seen.before.link.commit == base)
        await scene.sleep(scene.chooser.choice((0.01, 0.5)))
        scene.boot(restarting)
        await scene.happened(proposed, "a third attempt")
        scene.boot(second)
        await scene.until(lambda: base in scene.world.observed.certified, "a commit on that base")
        commit = scene.world.observed.certified[base or CommitId(b"")]
        await scene.agreement(scene.without(first))
        late: list[Seen] = []
        comes = scene.when(lambda seen: seen.node is not first and _brings_settle_of(seen, first, base), late.append)
        let_go[0]()
        await scene.happened(comes, "the first attempt's settle, after all the others")
    expect(not late[0].orders(GatherBytes) and not late[0].orders(LogAck), "nobody takes it")
    expect(led is not None and led.commit not in scene.world.observed.commits, "it never becomes a commit")
    ballot = scene.world.observed.commits[commit].record.ballot
    expect(ballot.attempt >= 2 and ballot.peer not in (first.peer, second.peer), f"a third one's record: {ballot}")
    for one, other in pairwise(sorted(reducers)):
        expect(reducers[one] != reducers[other], f"other reducers in attempt {other.attempt} than in {one.attempt}")
    await scene.back(first)
    await scene.agreement()
    _check_one_commit(scene, base or CommitId(b""), commit)


def _brings_settle_of(seen: Seen, leader: Node, base: CommitId | None) -> bool:
    message = seen.event.message if isinstance(seen.event, MessageArrived) else None
    return isinstance(message, Settle) and message.base == base and message.ballot.peer == leader.peer


def _note_reducers(scene: Scene, base: CommitId | None) -> dict[Ballot, list[PeerId]]:
    """The reducer of each slice, by attempt on this base, as its leader proposes it."""
    reducers: dict[Ballot, list[PeerId]] = {}

    def look(seen: Seen) -> None:
        proposal = seen.after.open.proposal
        if proposal is not None and proposal.base == base:
            reducers.setdefault(proposal.ballot, [part.reducer for part in proposal.slices])

    scene.hooks.append(look)
    return reducers


async def _leader_at_half(scene: Scene, others: list[Node]) -> Node:
    """The peer that leads an attempt and has half of its results, but not all."""
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


# --- votes on a base that is left behind and reached again --------------------------------------------------------------------


@scenario(3)
async def head_is_applied_again_after_damage(scene: Scene) -> None:
    """A voter acks what only its leader comes to know is decided, crashes, and its disk damages the bytes of its head: it starts a
    commit further back and applies its head again, on which it voted. Then it is one of two who make a quorum.
    """
    await scene.everybody_votes()
    settled: list[Seen] = []
    with ExitStack() as links:

        def settles(seen: Seen) -> None:
            settled.append(seen)
            rest = scene.without(seen.node)
            links.enter_context(scene.cut([seen.node], [rest[1]]))

        await scene.happened(scene.when(lambda seen: seen.stage == "settling", settles), "a leader settles")
        first = settled[0].node
        voter, third = scene.without(first)
        base = settled[0].before.link

        def knows_alone(seen: Seen) -> None:
            links.enter_context(scene.cut([first], [voter]))
            acked = scene.state(voter).open.acked
            expect(acked is not None, "the voter acked it")
            voter.crash()

        decided = scene.when(
            lambda seen: (
                seen.node is first
                and seen.before.link.commit == base.commit
                and seen.before.open.committing is None
                and seen.after.open.committing is not None
            ),
            knows_alone,
        )
        await scene.happened(decided, "a commit that only its leader knows")
        await scene.until(lambda: base.commit in scene.world.observed.certified, "its leader applies it")
        commit = scene.world.observed.certified[base.commit]
        _damage_head(voter, base)
        scene.boot(voter)
        await scene.until(lambda: min(voter.index, third.index) > base.index, "a commit of the other two", 90.0)
        expect(scene.world.observed.certified[base.commit] == commit, "it is what had been decided")
    await scene.agreement()
    _check_one_commit(scene, base.commit, commit)


def _damage_head(node: Node, link: ChainLink) -> None:
    """One bit of the newest generation, and of each result of the commit that led to it."""
    head, parent = link.commit.hex(), link.parent.hex()
    names = [
        name
        for name in node.disk.files
        if (name.startswith("generations/") and name.endswith(head)) or name.startswith(f"results/{parent}/")
    ]
    expect(bool(names), "there is something to damage")
    for name in names:
        data = bytearray(node.disk.files[name])
        data[-1] ^= 1
        node.disk.files[name] = bytes(data)
    node.is_disk_damaged = True


@scenario(3)
async def goodbye_with_a_slice_that_nobody_has(scene: Scene) -> None:
    """A leader with a thin line acks its record while the others still take its slice, and leaves: they go on without what it took."""
    await scene.everybody_votes()
    proposed: list[Seen] = []
    acked: list[Seen] = []

    def delay_one(seen: Seen) -> None:
        proposed.append(seen)
        trainer = scene.without(seen.node)[0].trainer
        real = trainer.snapshot

        async def late() -> Snapshot:
            await scene.sleep(1.5)
            setattr(trainer, "snapshot", real)  # noqa: B010 - a method is replaced
            return await real()

        setattr(trainer, "snapshot", late)  # noqa: B010 - a method is replaced

    await scene.happened(scene.when(lambda seen: seen.stage == "collecting", delay_one), "a proposal")
    leader = proposed[0].node
    others = scene.without(leader)
    await scene.sleep(1.0)  # the leader's own deltas are out; sums wait for the one whose snapshot is late
    with scene.thin([leader], others, 0.2):
        acks = scene.when(lambda seen: seen.node is leader and seen.sends(Ack), acked.append)
        await scene.happened(acks, "the one with the thin line acks a record", 120.0)
        base = acked[0].before.link
        leader.leave()
        await scene.until(lambda: leader.has_left, "goodbye", 30.0)
    await scene.until(lambda: min(node.index for node in others) > base.index, "the next commit", 130.0)


@scenario(2)
async def a_goodbye_that_nobody_heard(scene: Scene) -> None:
    """The tie-holder of two leaves while the other is cut off, and comes back. It has no vote where it left, which the other learns
    when it asks: after the patience both go on. (Seed 16 of the expert stories: both asked each other for ever.)
    """
    await scene.everybody_votes()
    leaver = scene.tie_holder(scene.nodes)
    (other,) = scene.without(leaver)
    with scene.cut([leaver], [other]):
        await scene.sleep(2.0)
        leaver.leave()
        await scene.until(lambda: not leaver.is_up, "the end of its process")
        await scene.sleep(3.0)
    scene.boot(leaver)
    before = other.index
    await scene.until(lambda: min(leaver.index, other.index) > before, "the next round at both", 300.0)
