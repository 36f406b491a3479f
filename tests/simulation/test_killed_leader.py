"""The leader of a round is killed in the middle of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import structlog
import trio

from averaging.network.memory import memory_stream
from averaging.network.seams.interfaces import Stream
from averaging.rounds.exchange import exchange
from averaging.rounds.traffic import fair_sending as even_sending
from averaging.rounds.traffic.fair_sending import FairSending
from protocol.ids import PeerId, Root
from protocol.rounds import machine as core
from protocol.rounds.events import Event
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.schedule.proposal import covered_chunks
from protocol.rounds.state import RoundState, RoundStep
from tests.simulation import swarm as worlds
from tests.simulation import trainer, virtual_time
from tests.simulation.node import Node
from tests.simulation.profiles import Profile
from tests.simulation.scenario import replaced
from tests.simulation.swarm import World

SEED: Final = 5
NUM_PEERS: Final = 4
NUM_ELEMENTS: Final = 1 << 20
CHUNK_ELEMENTS: Final = 16_384
FRAME_S: Final = 0.3
CHUNK_S: Final = 0.3
"""On a thin line, for each CHUNK_ELEMENTS bytes of a frame."""
PROFILE: Final = Profile(
    "a leader is killed", num_elements=NUM_ELEMENTS, round_s=20.0, longest_interval_s=120.0, codec="int8"
)


@contextmanager
def _slow_and_seen(world: World, states: dict[PeerId, RoundState], *, is_thin: bool) -> Iterator[None]:
    """Each frame takes its time, on a thin line by its length; how each machine stands."""
    real_step, real_delay = core.step, world.swarm.frame_delay_s

    def step(before: RoundState, event: Event, now_s: float) -> RoundStep:
        taken = real_step(before, event, now_s)
        states[taken.state.config.me.peer] = taken.state
        return taken

    def frame_delay_s(sender: PeerId, receiver: PeerId, num_bytes: int) -> tuple[float, bool]:
        took_s = CHUNK_S * num_bytes / CHUNK_ELEMENTS if is_thin else FRAME_S
        return real_delay(sender, receiver, num_bytes)[0] + took_s, False

    with replaced(core, step=step), replaced(world.swarm, frame_delay_s=frame_delay_s):
        yield


async def _killed(
    is_time: Callable[[list[Node]], bool], *, is_thin: bool = False
) -> tuple[set[Root], CommitRecord, PeerId]:
    """The sums that the survivors had made when the leader died, the record of their next attempt, and who was killed."""
    async with trio.open_nursery() as nursery:
        world, states = World(SEED, nursery, NUM_PEERS, NUM_PEERS, PROFILE), dict[PeerId, RoundState]()
        with _slow_and_seen(world, states, is_thin=is_thin):
            for node in world.nodes:
                world.boot(node)
            await world.wait_for(lambda: min(node.index for node in world.nodes) == 1, 120.0, "the first round")
            await world.wait_for(lambda: all(_is_in_round(states[node.peer]) for node in world.nodes), 60.0, "a round")
            proposal = states[world.nodes[0].peer].open.proposal
            assert proposal is not None
            (leader,) = [node for node in world.nodes if node.peer == proposal.ballot.peer]
            others = [node for node in world.nodes if node is not leader]
            await world.wait_for(lambda: is_time(others), 60.0, "the time to kill it")
            leader.crash()
            summed = set[Root]().union(*map(_summed, others))
            await world.wait_for(lambda: min(node.index for node in others) == 2, 60.0, "the second round")
            service = others[0].service
            record = service.chain.head.record if service is not None else None
        nursery.cancel_scope.cancel()
    assert record is not None
    return summed, record, leader.peer


def _is_in_round(state: RoundState) -> bool:
    return state.link.index == 1 and state.open.exchange is not None


def _summed(node: Node) -> set[Root]:
    """The results that it has made of its slices."""
    exchange = node.service._exchange_driver._exchange if node.service is not None else None
    reductions = exchange._reductions.values() if exchange is not None else ()
    return {reduction.result.header.result_hash for reduction in reductions if reduction.result is not None}


def _all_summed(nodes: list[Node]) -> bool:
    return all(map(_summed, nodes))


class _Results:
    """Which chunks of results left for whom, and how often."""

    def __init__(self) -> None:
        self.left = Counter[tuple[PeerId, bytes]]()
        self.num_on = 0
        """How many went on behind their first chunk."""

        self._is_in_round = False

    async def send_evenly(
        self, stream: Stream, numbers: Sequence[int], data: bytes, chunks: Sequence[bytes], sending: FairSending
    ) -> None:
        def left(run: range) -> None:
            self.left.update((stream.remote, bytes(chunks[number])) for number in run)

        self.num_on += numbers[0] > 0
        await even_sending.send_evenly(stream, numbers, data, chunks, sending, left=left)

    def is_half(self, survivors: list[Node]) -> bool:
        """Whether half of what survivors will have of one another has left in the second round."""
        if not self._is_in_round:
            self._is_in_round = True
            self.left.clear()
        num_chunks = NUM_ELEMENTS // CHUNK_ELEMENTS // NUM_PEERS
        came = Counter(peer for peer, _ in self.left)
        return _all_summed(survivors) and all(came[node.peer] >= num_chunks for node in survivors)


def test_results_between_survivors_go_on_where_they_were_when_their_leader_was_killed() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    results = _Results()
    with (
        replaced(worlds, NUM_CHUNKS=NUM_ELEMENTS // CHUNK_ELEMENTS),
        replaced(trainer, MIN_DIRECTIONS=16),
        replaced(memory_stream, FRAME_BUFFER=1),
        replaced(exchange, send_evenly=results.send_evenly),
    ):
        summed, record, leader = virtual_time.run(SEED, lambda: _killed(results.is_half, is_thin=True))
    assert (record.ballot.attempt, record.ballot.peer != leader) == (1, True)
    assert summed < {part.result_hash for part in record.slices}
    survivors = NUM_PEERS - 1
    twice = sum(times - 1 for times in results.left.values())
    assert results.num_on == survivors * (survivors - 1)
    assert twice <= results.num_on, "no more than the frame that was on its way"


def test_what_a_leader_had_brought_is_counted_though_it_is_killed_and_no_sum_of_a_survivor_is_made_anew() -> None:
    """Else whatever members have of each other's results is sent once more."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with replaced(worlds, NUM_CHUNKS=NUM_ELEMENTS // CHUNK_ELEMENTS), replaced(trainer, MIN_DIRECTIONS=16):
        summed, record, leader = virtual_time.run(SEED, lambda: _killed(_all_summed))
    assert record.ballot.attempt == 1
    assert len(summed) == NUM_PEERS - 1
    assert summed < {part.result_hash for part in record.slices}
    covered = sum(stop - first for first, stop in covered_chunks(record, leader))
    assert covered == record.slices[-1].stop_chunk * 3 // 4
    assert leader in record.roster, "the voters are those who took part, whoever is gone since"
