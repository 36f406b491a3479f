"""A crash at every write and every send of a round: of its leader, of a member, of a member whose word the quorum needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from averaging.state.log_entries import LOG_NAME
from protocol.ids import CommitId, PeerId
from protocol.rounds.events import Applied, ContributionReady
from protocol.rounds.orders import BeginExchange
from tests.simulation.node import Node
from tests.simulation.scenario import CALM, Scenario, Scene, Seen, add, expect, replaced, scenario

BRISK = replace(CALM, round_s=3.0, list_every_s=2.0)
FED = replace(BRISK, codec="topk", result_codec="top6", num_elements=8 * 130, error_feedback=0.95)
STRIDE = 8
"""Points of a round from one crash to the next: so many seeds have crashed at each point."""

NUM_SHORT = 2
"""Rounds that were over before the last point: in one of them the victim may only have fetched what was committed without it."""


@dataclass
class Tripwire:
    """Crashes a node at one point of what it does: the beginning or the end of a write, or a send."""

    node: Node
    point: int
    is_armed: bool = False
    passed: int = 0

    @property
    def has_tripped(self) -> bool:
        """Whether it crashed."""
        return self.passed >= self.point

    def passes(self) -> bool:
        """Whether the node comes through the next point alive."""
        if not self.is_armed or self.has_tripped:
            return True
        self.passed += 1
        if not self.has_tripped:
            return True
        self.node.crash()
        return False


@contextmanager
def _tripwire(scene: Scene, node: Node, point: int, *, at_sends: bool) -> Iterator[Tripwire]:
    """Crash it at this point after the wire was armed."""
    wire, swarm, disk = Tripwire(node, point), scene.world.swarm, node.disk
    real_begin, real_finish = disk.begin, disk.finish
    real_carry, real_frame_delay_s = swarm.carry, swarm.frame_delay_s

    def begin(name: str, record: bytes) -> int:
        write = real_begin(name, record)
        wire.passes()
        return write

    def finish(write: int) -> None:
        real_finish(write)
        wire.passes()

    def carry(sender: PeerId, receiver: PeerId, num_bytes: int, arrive: Callable[[], None]) -> None:
        if sender != node.peer or wire.passes():
            real_carry(sender, receiver, num_bytes, arrive)

    def frame_delay_s(sender: PeerId, receiver: PeerId, num_bytes: int) -> tuple[float, bool]:
        if sender != node.peer or wire.passes():
            return real_frame_delay_s(sender, receiver, num_bytes)
        return 0.0, True

    sends = {"carry": carry, "frame_delay_s": frame_delay_s} if at_sends else {}
    with replaced(disk, begin=begin, finish=finish), replaced(swarm, **sends):
        yield wire


async def _crash_everywhere(scene: Scene, is_leader: bool, linger_s: float = 0.0) -> None:
    """Round after round, the leader or a member crashes a few points further on; `linger_s` after its commit it still may."""
    point, num_short = 1 + scene.world.seed % STRIDE, 0
    while num_short < NUM_SHORT:
        if await _crash_once(scene, is_leader, point, linger_s):
            point += STRIDE
        else:
            num_short += 1
    expect(point > 3 * STRIDE, f"a round has many points; it had {point}")


async def _crash_once(scene: Scene, is_leader: bool, point: int, linger_s: float) -> bool:
    """One round with a crash; False when the round was over before it came to that point."""
    await scene.everybody_votes()
    opener, base = scene.opener(), scene.nodes[0].head
    victim = opener if is_leader else scene.chooser.choice(scene.without(opener))
    # answers may come so late that they find the next process
    scene.world.swarm.reorder_s = scene.chooser.choice((0.0, 0.0, 1.0))
    with _tripwire(scene, victim, point, at_sends=True) as wire:
        await _round_of(scene, victim, base, wire, linger_s=linger_s)
    if wire.has_tripped:
        await scene.sleep(scene.chooser.choice((0.01, 0.4, 3.0)))
        scene.boot(victim)
    scene.world.swarm.reorder_s = 0.0
    await _has_one_commit(scene, base)
    return wire.has_tripped


async def _round_of(
    scene: Scene,
    victim: Node,
    base: CommitId | None,
    wire: Tripwire,
    begun: Callable[[], None] = lambda: None,
    linger_s: float = 0.0,
) -> None:
    """One round of the victim, with the wire armed from its first vote or order to its commit."""

    def begins(seen: Seen) -> bool:
        is_begun = bool(seen.stage) or seen.orders(BeginExchange)
        return seen.node is victim and seen.before.link.commit == base and is_begun

    def ends(seen: Seen) -> bool:
        return seen.node is victim and isinstance(seen.event, Applied)

    def arm(seen: Seen) -> None:
        wire.is_armed = True
        begun()

    scene.when(begins, arm)
    over = scene.when(ends)
    await scene.until(lambda: wire.has_tripped or over.is_set(), "a crash or a commit")
    if linger_s and not wire.has_tripped:
        await scene.sleep(linger_s)
    wire.is_armed = False


async def _has_one_commit(scene: Scene, base: CommitId | None) -> None:
    """All who run come to the one commit on this base."""
    await scene.until(lambda: base in scene.world.observed.certified, "a commit on that base")
    await scene.agreement()
    expect(base is not None and scene.is_followed(scene.world.observed.certified[base]), "all follow it")


add(Scenario("leader-crashes-everywhere", partial(_crash_everywhere, is_leader=True), 3, BRISK))
add(Scenario("member-crashes-everywhere", partial(_crash_everywhere, is_leader=False), 3, BRISK))
add(
    Scenario(
        "member-with-feedback-crashes-everywhere",
        partial(_crash_everywhere, is_leader=False, linger_s=0.3),
        3,
        FED,
    )
)


# --- two of three, and what their disks say -----------------------------------------------------------------------------------


NO_BYTES, NO_ACK, BOTH, ACK_ONLY = "no bytes", "bytes without an ack", "an ack with bytes", "an ack without bytes"


@scenario(3, BRISK)
async def ack_of_the_last_but_one(scene: Scene) -> None:
    """One of three is dead, another one crashes at the beginning and at the end of each write of its results and of its ack, one after
    another; some lose the results although the ack is there. The round is committed without the dead one.
    """
    seen: set[str] = set()
    point, num_short = 1, 0
    while num_short < NUM_SHORT:
        if await _crash_beside_a_dead(scene, point, seen):
            point += 1
        else:
            num_short += 1
    expect(point > 6, f"results and an ack take more than six points; there were {point}")
    for late in 4 * [*range(point - 1, 0, -1)]:  # the ack comes last, and the first disk that had all of it was damaged
        if BOTH not in seen:
            await _crash_beside_a_dead(scene, late, seen)
    expect(seen == {NO_BYTES, NO_ACK, BOTH, ACK_ONLY}, f"the disk was found in every state; it was in {sorted(seen)}")


async def _crash_beside_a_dead(scene: Scene, point: int, seen: set[str]) -> bool:
    await scene.everybody_votes()
    opener, base = scene.opener(), scene.nodes[0].head or CommitId(b"")
    victim, dead = scene.without(opener)
    with _tripwire(scene, victim, point, at_sends=False) as wire:
        await _round_of(scene, victim, base, wire, dead.crash)
    if wire.has_tripped:
        await scene.sleep(scene.chooser.choice((0.01, 3.0)))
        if _disk_state(victim, base) == BOTH and ACK_ONLY not in seen:
            _damage(victim, opener, f"results/{base.hex()}/")
        seen.add(_disk_state(victim, base))
        scene.boot(victim)
    await _has_one_commit(scene, base)
    if not dead.is_up:
        scene.boot(dead)
    return wire.has_tripped


def _disk_state(node: Node, base: CommitId) -> str:
    has_bytes = any(name.startswith(f"results/{base.hex()}/") for name in node.disk.files)
    has_ack = any(record.startswith(b"A" + base) for record in node.disk.logs.get(LOG_NAME, ()))
    return {(False, False): NO_BYTES, (True, False): NO_ACK, (True, True): BOTH, (False, True): ACK_ONLY}[
        has_bytes, has_ack
    ]


def _damage(node: Node, other: Node, prefix: str) -> None:
    """Lose files of which there is another copy."""
    for name in [name for name in node.disk.files if name.startswith(prefix) and name in other.disk.files]:
        del node.disk.files[name]
    node.is_disk_damaged = True


# --- the training process -----------------------------------------------------------------------------------------------------


async def _worker_dies(scene: Scene, is_it: Callable[[Seen], bool]) -> None:
    """The training process of a member runs out of memory: what it had sent is counted, nothing is counted twice."""
    await scene.everybody_votes()
    victim = scene.chooser.choice(scene.nodes)
    bases: list[CommitId] = []

    def die(seen: Seen) -> None:
        bases.append(seen.before.link.commit)  # not every round finds it with something to offer
        if victim.trainer is not None:
            victim.trainer.lose_work()

    died = scene.when(lambda seen: seen.node is victim and is_it(seen), die)
    await scene.happened(died, "the death")
    await _has_one_commit(scene, bases[0])
    first = scene.world.observed.commits[scene.world.observed.certified[bases[0]]]
    expect(victim.peer in first.counted, "what was sent before the death is counted")
    await scene.rounds(2)


def _has_offered(seen: Seen) -> bool:
    return isinstance(seen.event, ContributionReady)


def _has_applied(seen: Seen) -> bool:
    return isinstance(seen.event, Applied)


add(Scenario("worker-dies-before-the-commit", partial(_worker_dies, is_it=_has_offered), 4))
add(Scenario("worker-dies-before-the-shift", partial(_worker_dies, is_it=_has_applied), 4))
add(Scenario("worker-with-feedback-dies-before-the-commit", partial(_worker_dies, is_it=_has_offered), 4, FED))
