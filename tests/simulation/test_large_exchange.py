"""A round of many whose bulk takes its time: what members say meanwhile, and how soon they find who fell silent or died."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import trio

from protocol.ids import PeerId
from protocol.rounds import machine as core
from protocol.rounds.events import Event
from protocol.rounds.failure_probes import NUM_BESIDE, do_watch
from protocol.rounds.orders import DropMember, SendHeartbeat
from protocol.rounds.schedule.liveness_timing import SUSPECT_AFTER_S
from protocol.rounds.state import RoundState, RoundStep
from tests.simulation import virtual_time
from tests.simulation.node import Node
from tests.simulation.profiles import Profile
from tests.simulation.scenario import replaced
from tests.simulation.swarm import World

SEED: Final = 7
NUM_PEERS: Final = 16
FRAME_S: Final = 1.5
"""Each frame of an exchange takes so long, which makes one of about ten seconds."""

PROFILE: Final = Profile("large exchange", round_s=20.0, longest_interval_s=120.0)


@dataclass
class Heard:
    """Of all round machines: heartbeats sent in exchanges, how long each was in one, who dropped whom at first, and when."""

    beats: dict[PeerId, int] = field(default_factory=lambda: defaultdict(int))
    exchange_s: dict[PeerId, float] = field(default_factory=lambda: defaultdict(float))
    dropped_s: dict[tuple[PeerId, PeerId], float] = field(default_factory=dict)
    states: dict[PeerId, RoundState] = field(default_factory=dict)
    _since_s: dict[PeerId, float] = field(default_factory=dict)

    def note(self, step: RoundStep, now_s: float) -> None:
        """One step of one machine."""
        opened, me = step.state.open, step.state.config.me.peer
        self.states[me] = step.state
        if me in self._since_s:
            self.exchange_s[me] += now_s - self._since_s.pop(me)
        if opened.exchange is not None and opened.proposal is not None:
            self._since_s[me] = now_s
            self.beats[me] += sum(len(order.to) for order in step.actions if isinstance(order, SendHeartbeat))
        for order in step.actions:
            if isinstance(order, DropMember):
                self.dropped_s.setdefault((me, order.peer), now_s)

    def beats_a_second(self, peer: PeerId) -> float:
        """While it was in an exchange."""
        return self.beats[peer] / self.exchange_s[peer]


@contextmanager
def _listening(heard: Heard, world: World) -> Iterator[None]:
    real_step, real_delay = core.step, world.swarm.frame_delay_s

    def step(before: RoundState, event: Event, now_s: float) -> RoundStep:
        taken = real_step(before, event, now_s)
        heard.note(taken, trio.current_time())
        return taken

    def frame_delay_s(sender: PeerId, receiver: PeerId, num_bytes: int) -> tuple[float, bool]:
        return real_delay(sender, receiver, num_bytes)[0] + FRAME_S, False

    with replaced(core, step=step), replaced(world.swarm, frame_delay_s=frame_delay_s):
        yield


def _all_exchange(heard: Heard, nodes: list[Node]) -> bool:
    return all(heard.states[node.peer].open.exchange is not None for node in nodes)


async def _round(world: World, heard: Heard, nodes: list[Node]) -> None:
    """One of all these, to its end."""
    before = min(node.index for node in nodes)
    await world.wait_for(lambda: min(node.index for node in nodes) > before, 120.0, "a round")


async def _calm(num_peers: int) -> Heard:
    async with trio.open_nursery() as nursery:
        world, heard = World(SEED, nursery, num_peers, num_peers, PROFILE), Heard()
        with _listening(heard, world):
            for node in world.nodes:
                world.boot(node)
            await _round(world, heard, world.nodes)
        nursery.cancel_scope.cancel()
    assert not heard.dropped_s, heard.dropped_s
    return heard


async def _found(world: World, heard: Heard, one: Node, at_s: float) -> None:
    """Everybody else takes it for lost, those who look after it first."""
    others = [node for node in world.nodes if node is not one]
    await world.wait_for(
        lambda: all((node.peer, one.peer) in heard.dropped_s for node in others),
        2 * SUSPECT_AFTER_S + 2.0,
        "all know it",
    )
    for node in others:
        if do_watch(heard.states[node.peer], node.peer, one.peer):
            assert heard.dropped_s[node.peer, one.peer] - at_s <= SUSPECT_AFTER_S + 1.0


async def _lost(how: str) -> tuple[Heard, PeerId, float]:
    """One that neither leads nor is beside who does is frozen or killed in the middle of an exchange."""
    async with trio.open_nursery() as nursery:
        world, heard = World(SEED, nursery, NUM_PEERS, NUM_PEERS, PROFILE), Heard()
        with _listening(heard, world):
            for node in world.nodes:
                world.boot(node)
            await world.wait_for(lambda: len(heard.states) == NUM_PEERS, 30.0, "the start")
            await world.wait_for(lambda: _all_exchange(heard, world.nodes), 120.0, "an exchange")
            proposal = heard.states[world.nodes[0].peer].open.proposal
            assert proposal is not None
            one = next(node for node in world.nodes if node.peer != proposal.ballot.peer)
            await world.swarm.timers.sleep(1.0)
            at_s = trio.current_time()
            (one.freeze if how == "freeze" else one.crash)()
            others = [node for node in world.nodes if node is not one]
            try:
                await _found(world, heard, one, at_s)
                await _round(world, heard, others)
            finally:
                one.thaw()
        nursery.cancel_scope.cancel()
    return heard, one.peer, at_s


def test_in_an_exchange_of_sixteen_a_member_asks_two_others_twice_a_second_and_three_in_turn_and_the_leader_all() -> (
    None
):
    heard = virtual_time.run(SEED, partial(_calm, NUM_PEERS))
    assert min(heard.exchange_s.values()) > 8.0
    said = sorted(map(heard.beats_a_second, heard.beats))
    assert said[-2] <= NUM_BESIDE / 0.4 + 4.0
    assert said[-1] <= NUM_PEERS / 0.4 + 4.0


def test_who_freezes_in_an_exchange_of_sixteen_is_found_by_all_within_two_suspicions_and_the_round_ends() -> None:
    heard, one, at_s = virtual_time.run(SEED, partial(_lost, "freeze"))
    found_s = [when_s - at_s for (_, whom), when_s in heard.dropped_s.items() if whom == one]
    assert min(found_s) >= SUSPECT_AFTER_S - 0.5
    assert max(found_s) <= 2 * SUSPECT_AFTER_S + 1.2
    assert {whom for _, whom in heard.dropped_s} == {one}, "nobody else was taken for dead"


def test_who_is_killed_in_an_exchange_of_sixteen_is_found_by_all_within_two_seconds_and_the_round_ends() -> None:
    heard, one, at_s = virtual_time.run(SEED, partial(_lost, "crash"))
    assert max(when_s - at_s for (_, whom), when_s in heard.dropped_s.items() if whom == one) <= 2.0
    assert {whom for _, whom in heard.dropped_s} == {one}
