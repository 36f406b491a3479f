"""Rewinds and holds of the host, on the production services in virtual time.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import pytest
import structlog
import torch
import trio

from averaging.network.seams.interfaces import Snapshot
from averaging.rounds.exchange import exchange_driver
from averaging.rounds.traffic.contribution import DeltaEncoder
from protocol.ids import CommitId
from protocol.rounds.events import CommitsFetched
from protocol.rounds.lineage.chain_link import ChainLink
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
NUM_HELD: Final = 2
FACTOR: Final = -100.0
STEP: Final = 1e-3
AFTER: Final = 4
"""Rounds after the rewind to which a run is played."""

Story = Callable[[World], Awaitable[None]]


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


@pytest.mark.parametrize(("codec", "feedback"), [("int8", 0.0), ("topk", 1.0)])
def test_a_poisoned_run_goes_back_to_its_good_commit_and_on_from_there(codec: str, feedback: float) -> None:
    async def story(world: World, poison: Poison) -> None:
        good, certificate = await _poisoned(world, poison)
        for node in world.nodes:
            await give(node, certificate)
        await _until_all_after(world, good)
        _check_end(world, good)

    play(story, codec, feedback)


def test_one_peer_that_hears_the_host_takes_all_others_back() -> None:
    async def story(world: World, poison: Poison) -> None:
        good, certificate = await _poisoned(world, poison)
        await give(world.nodes[3], certificate)
        await _until_all_after(world, good)
        _check_end(world, good)

    play(story)


def test_a_peer_that_was_away_and_one_that_restarts_go_back_like_the_others() -> None:
    async def story(world: World, poison: Poison) -> None:
        good, certificate = await _poisoned(world, poison)
        away, crashed = world.nodes[4], world.nodes[5]
        away.crash()
        await give(world.nodes[0], certificate)
        crashed.crash()
        await _until_all_after(world, good)
        world.boot(crashed)
        world.boot(away)
        await world.wait_for(lambda: away.is_up and crashed.is_up, 60.0, "both are up")
        await _until_all_after(world, good)
        _check_end(world, good)

    play(story)


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
