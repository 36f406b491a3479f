"""Rewinds and holds of the host, on the production services in virtual time.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import structlog
import torch
import trio

from averaging.network.seams.interfaces import Snapshot
from averaging.rounds.exchange import exchange_driver
from averaging.rounds.traffic.contribution import DeltaEncoder
from coordinator.audits.loss_gate_core import HOLD_S, GateFacts, GoBack, Measure, SignHold, next_action
from protocol.ids import CommitId
from protocol.rounds.events import CommitsFetched
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.hold import Hold
from protocol.rounds.lineage.rewind import Rewind, seal_rewind
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.schedule.sum_rules import SumRules
from tests.simulation import virtual_time
from tests.simulation.node import Node, WatchedChain
from tests.simulation.profiles import Profile
from tests.simulation.scenario import replaced
from tests.simulation.signing import AUTHORITY
from tests.simulation.swarm import World

SEED: Final = 5
NUM_PEERS: Final = 6
NUM_POISONERS: Final = 2
NUM_ELEMENTS: Final = 4 * 512
GOOD_INDEX: Final = 3
NUM_GOOD: Final = 8
"""Good rounds before a gate judges."""

NUM_HELD: Final = 2
FACTOR: Final = -100.0
STEP: Final = 1e-3
AFTER: Final = 4
"""Rounds after the rewind to which a run is played."""


def _delta(number: int, index: int) -> torch.Tensor:
    """An honest delta, (N,) float32: half of its energy is what all have in common."""
    common, own = (
        torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(seed))
        for seed in (index, 1000 * (number + 1) + index)
    )
    return STEP * (common + own)


class Poison:
    """The first members of a world send wrong deltas while it is on."""

    is_on = False

    @contextmanager
    def spread(self) -> Iterator[None]:
        """All members send made deltas, the poisoners' turned and lengthened."""
        real = exchange_driver._encoder

        def encoder(chain: WatchedChain, anchor_N: torch.Tensor, snapshot: Snapshot) -> DeltaEncoder:
            number = chain.node.number
            factor = FACTOR if self.is_on and number < NUM_POISONERS else 1.0
            delta_N = factor * _delta(number, chain.head.index)
            return real(chain, anchor_N, replace(snapshot, theta_N=torch.sub(anchor_N, delta_N)))

        with replaced(exchange_driver, _encoder=encoder):
            yield


def chain_of(node: Node) -> WatchedChain:
    """The chain of a peer's one unit."""
    chain = next(iter(node.services.values())).chain
    assert isinstance(chain, WatchedChain)
    return chain


def links_of(node: Node) -> list[ChainLink]:
    """The commits on which a peer stands."""
    return chain_of(node).links


def rewind_of(world: World, good: ChainLink, left: CommitId) -> Certificate:
    """The certificate that takes the world's run back to this commit."""
    return seal_rewind(AUTHORITY, world.run_id, good, Rewind(1, left, 1_700_000_000))


async def give(node: Node, certificate: Certificate) -> None:
    """The host's answer to a report brings the rewind."""
    service = next(iter(node.services.values()))
    await service.tell(CommitsFetched(node.peer, (certificate,)))


def _profile(codec: str, feedback: float) -> Profile:
    return Profile(
        "loss gate",
        round_s=10.0,
        longest_interval_s=60.0,
        num_elements=NUM_ELEMENTS,
        codec=codec,
        error_feedback=feedback,
        sums=SumRules(robust="off"),
    )


def play(story: Callable[[World, Poison], Awaitable[None]], codec: str = "int8", feedback: float = 0.0) -> None:
    """A world whose members all start, and a story in it."""

    async def scene() -> None:
        poison = Poison()
        async with trio.open_nursery() as nursery:
            world = World(SEED, nursery, NUM_PEERS, NUM_PEERS, _profile(codec, feedback))
            with poison.spread():
                for node in world.nodes:
                    world.boot(node)
                await story(world, poison)
            nursery.cancel_scope.cancel()

    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    try:
        virtual_time.run(SEED, scene)
    finally:
        structlog.configure(**before)


async def until_all_at(world: World, index: int) -> None:
    """Every peer that is up has applied so many commits."""
    await world.wait_for(
        lambda: all(node.is_up and node.index >= index for node in world.live_nodes()), 300.0, f"round {index}"
    )


async def _poisoned(world: World, poison: Poison) -> tuple[ChainLink, Certificate]:
    """A third of the members spoil the model after the good commit, which is returned with the rewind to it."""
    await until_all_at(world, GOOD_INDEX)
    good = links_of(world.nodes[-1])[GOOD_INDEX]
    poison.is_on = True
    await until_all_at(world, GOOD_INDEX + NUM_HELD)
    node = world.nodes[-1]
    assert chain_of(node).state.anchor_N.norm() > 10 * STEP * NUM_ELEMENTS**0.5
    poison.is_on = False
    return good, rewind_of(world, good, links_of(node)[-1].commit)


async def _until_all_after(world: World, good: ChainLink) -> None:
    def is_there() -> bool:
        return all(
            node.is_up and node.index >= good.index + AFTER and links_of(node)[good.index + 1].rewind
            for node in world.live_nodes()
        )

    await world.wait_for(is_there, 600.0, "all go on from the rewind")


def _check_end(world: World, good: ChainLink) -> None:
    """All have one history through the good commit, and one sound state."""
    for node in world.live_nodes():
        assert links_of(node)[good.index] == good
        assert links_of(node)[good.index + 1].rewind == 1
        assert chain_of(node).state.anchor_N.norm() < 10 * STEP * NUM_ELEMENTS**0.5
        assert chain_of(node).is_sound
    least = min(node.index for node in world.live_nodes())
    assert len({links_of(node)[least].commit for node in world.live_nodes()}) == 1
    roots = {chain_of(node).root for node in world.live_nodes() if node.index == least}
    assert len(roots) == 1
    assert not any(next(iter(node.services.values())).state.barred.expelled for node in world.live_nodes())
    world.host.is_ahead()  # it hears everybody once
    assert links_of(world.nodes[0])[good.index + 1] in world.host.log.lineage(100)


def test_one_peer_that_hears_the_host_takes_all_others_back_also_where_work_that_was_left_out_is_offered_again() -> (
    None
):
    async def story(world: World, poison: Poison) -> None:
        good, certificate = await _poisoned(world, poison)
        await give(world.nodes[3], certificate)
        await _until_all_after(world, good)
        _check_end(world, good)

    play(story, "topk", 0.95)


def test_everybody_may_restart_right_after_the_rewind() -> None:
    async def story(world: World, poison: Poison) -> None:
        good, certificate = await _poisoned(world, poison)
        for node in world.nodes:
            await give(node, certificate)
        await world.wait_for(lambda: all(links_of(n)[-1].rewind for n in world.nodes), 60.0, "all are back")
        for node in world.nodes:
            node.crash()
        for node in world.nodes:
            world.boot(node)
        await world.wait_for(lambda: all(n.is_up and n.services for n in world.nodes), 60.0, "all are up")
        await _until_all_after(world, good)
        _check_end(world, good)

    play(story)


# --- with a gate ----------------------------------------------------------------------------------------------------------------


class HostLosses:
    """A host's gate over the losses that peers measure: the real decisions and signatures, on the real log of commits.

    Attributes:
        told: the peers that hear the host.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._losses: dict[CommitId, float] = {}
        self._genesis = world.host.log.genesis.commit
        self._came_s, self._head = 0.0, self._genesis
        self.hold: Hold | None = None
        self.certificate: Certificate | None = None
        self.told: list[Node] = list(world.nodes)
        self.number = 0

    async def run(self) -> None:
        """Measure, decide and tell, again and again."""
        while True:
            await self._world.swarm.timers.sleep(2.0)
            self._measure()
            await self._decide()
            for node in self.told:
                if node.is_up and node.services:
                    node.hold = self.hold
                    if self.certificate is not None:
                        await give(node, self.certificate)

    def _measure(self) -> None:
        """The loss is a little noisy, and grows with the norm of a model that was spoiled."""
        for node in self._world.live_nodes():
            state = chain_of(node).state if node.services else None
            if state is not None:
                spoiled = max(0.0, float(state.anchor_N.norm()) - 10 * STEP * NUM_ELEMENTS**0.5)
                self._losses.setdefault(state.head, 3.0 + 0.01 * (state.head[0] % 3) + spoiled)

    async def _decide(self) -> None:
        log, now_s = self._world.host.log, trio.current_time()
        if log.head.commit != self._head:
            self._head, self._came_s = log.head.commit, now_s
        links = log.lineage(100)
        measures = [Measure(link.index, self._losses[link.commit]) for link in links if link.commit in self._losses]
        unix_s = self._world.swarm.unix_offset_s + now_s
        still_s, is_back = now_s - self._came_s, not self.number or any(link.rewind for link in links)
        action, _ = next_action(GateFacts(links, measures, self.hold, self.number, unix_s, still_s, is_back))
        match action:
            case SignHold(number, rise):
                last = rise.bad[-1]
                losses = (rise.good.index, rise.good.nats, last.index, last.nats)
                unit, head = log.head.unit, log.head.commit
                self.hold = Hold(number, unit, self._genesis, head, int(unix_s), HOLD_S, *losses)
            case GoBack(number, good):
                self.number = number
                self.certificate = seal_rewind(
                    AUTHORITY, self._world.run_id, good, Rewind(number, log.head.commit, int(unix_s))
                )


def test_a_gate_holds_a_poisoned_run_and_takes_it_back_past_restarts_of_host_and_peers() -> None:
    """A third of the members spoil two rounds under the plain mean. One peer is away for hold and rewind, one restarts in between
    and never hears the host, the host comes back with its ledger alone, and one joins after the rewind.
    """

    async def story(world: World, poison: Poison) -> None:
        gate = HostLosses(world)
        world.nursery.start_soon(world.host.serve)
        world.nursery.start_soon(gate.run)
        away, deaf = world.nodes[4], world.nodes[5]
        await until_all_at(world, NUM_GOOD)
        good = links_of(deaf)[NUM_GOOD]
        poison.is_on = True
        await until_all_at(world, NUM_GOOD + NUM_HELD)
        away.crash()
        gate.told = [node for node in world.nodes if node not in (away, deaf)]
        await world.wait_for(lambda: gate.hold is not None, 120.0, "the host holds the run")
        poison.is_on = False
        deaf.crash()
        world.host.restart()
        world.boot(deaf)
        await world.wait_for(lambda: gate.certificate is not None, 200.0, "the host goes back")
        held = max(node.index for node in world.live_nodes())
        assert held <= NUM_GOOD + NUM_HELD + 2, "nobody opens rounds that are held"
        await world.wait_for(lambda: all(links_of(n)[-1].rewind for n in gate.told), 120.0, "all that hear are back")
        world.boot(away)
        newcomer = world.add_node()
        world.boot(newcomer)
        came = (away, newcomer)
        await world.wait_for(lambda: all(node.is_up and node.services for node in came), 60.0, "both are there")
        await _until_all_after(world, good)
        _check_end(world, good)

    play(story)
