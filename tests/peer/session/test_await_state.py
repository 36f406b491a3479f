"""A newcomer beside a swarm in virtual time whose donors are gone: it makes no run of its own, and goes on once one comes back."""

from __future__ import annotations

from dataclasses import replace

from averaging.network.seams.interfaces import TrainerProgress
from averaging.rounds.peer_rounds import PeerContext, PeerRounds
from averaging.rounds.unit_service import RoundService
from averaging.state.unit_log import UnitLog
from averaging.storage.memory_storage import MemoryDisk
from peer.session.await_state import FirstState
from peer.session.catch_up import catch_up_by_snapshot
from peer.status.status_board import StatusBoard
from protocol.ids import PeerId, UnitName
from protocol.rounds.messages.messages import AckedRecord
from protocol.rounds.messages.record import Ballot
from protocol.rounds.state import OpenRound
from tests.peer.session.test_catch_up import NEWCOMER, after_rounds, new_chain
from tests.simulation.node import Node
from tests.simulation.swarm import World
from tests.simulation.virtual_time import Process

LONG_S = 600.0
"""Ten times the patience after which the peers at hand commit alone."""


class Newcomer(Node):
    """Begins as the daemon does: nothing of it is contributed before there is something to train on."""

    host_index = 0
    shown_index = 0
    first: FirstState | None = None

    @property
    def board(self) -> StatusBoard:
        """The board on which it says why it waits."""
        if not hasattr(self, "_board"):
            self._board = StatusBoard(self.peer, self.clock, 0.0, state="catching up")
        return self._board

    async def _unit(
        self, process: Process, tools: PeerContext, rounds: PeerRounds, unit: UnitName, log: UnitLog
    ) -> RoundService:
        service = await super()._unit(process, tools, rounds, unit, log)
        votes = await service.chain.votes_on_head()
        first = FirstState(service.chain, votes, lambda: self.host_index, self.shown_index, self.board)
        trainer, self.first = self.trainers[unit], first
        progress = trainer.progress

        def held() -> TrainerProgress:
            return replace(progress(), state="held") if first.is_missing else progress()

        trainer.progress = held  # type: ignore[method-assign]
        self.world.nursery.start_soon(first.wait)
        return service


def _newcomer(world: World) -> Newcomer:
    node = Newcomer(world, len(world.nodes), 100.0, 0.0)
    world.nodes.append(node)
    return node


def test_newcomer_that_reaches_nobody_while_the_host_tells_of_a_later_round_trains_no_run_of_its_own() -> None:
    async def check(world: World) -> None:
        founders, index = list(world.nodes), world.rounds()
        for node in founders:
            node.crash()
        first, second = _newcomer(world), _newcomer(world)
        for newcomer in (first, second):
            newcomer.host_index = index
            world.boot(newcomer)
        await world.swarm.timers.sleep(LONG_S)
        assert (first.index, second.index) == (0, 0)
        assert first.board.state == "waiting"
        assert f"round {index}, for 10 min now: nobody who has it can be reached" in first.board.reason
        world.boot(founders[0])
        await world.wait_for(lambda: first.index >= index and second.index >= index, 120.0, "the state")
        assert first.first is not None
        assert not first.first.is_missing
        await world.wait_for(lambda: first.index > index + 1, 300.0, "rounds with the newcomers")
        assert first.service is not None
        assert any(
            link.record is not None and link.record.contributor(first.peer) for link in first.service.chain.links
        )

    after_rounds(3, check)


def test_peers_without_a_word_of_a_later_round_begin_at_the_start_and_are_not_held_by_the_first_round() -> None:
    async def check(world: World) -> None:
        for node in list(world.nodes):
            node.crash()
        newcomer = _newcomer(world)
        world.boot(newcomer)
        await world.swarm.timers.sleep(1.0)
        newcomer.host_index = 1  # somebody else's first round, which comes here in a moment
        assert newcomer.first is not None
        assert not newcomer.first.is_missing
        await world.wait_for(lambda: newcomer.index > 0, LONG_S, "rounds of its own")

    after_rounds(1, check)


def test_donor_that_is_gone_after_it_showed_the_runs_commits_is_waited_for_also_without_a_host() -> None:
    async def check(world: World) -> None:
        chain, donor = new_chain(world, MemoryDisk()), world.nodes[0].peer
        await chain.restore()
        shown = await catch_up_by_snapshot(world.swarm.start(NEWCOMER), chain, [donor], lambda progress: None)
        assert (chain.head.index, shown) == (0, world.nodes[0].index)
        board = StatusBoard(PeerId("newcomer"), world.nodes[0].clock, 0.0)
        assert FirstState(chain, OpenRound(), lambda: 0, shown, board).is_missing
        assert not FirstState(chain, OpenRound(), lambda: 0, 0, board).is_missing

    after_rounds(2, check)


def test_peer_whose_own_log_was_lost_waits_for_that_state_though_nobody_tells_of_it() -> None:
    """Neither a host nor another peer is there; what it had is on its disk and says so."""

    async def check(world: World) -> None:
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        board, lost = StatusBoard(PeerId("alone"), world.nodes[0].clock, 0.0, state="catching up"), [7]
        first = FirstState(chain, OpenRound(), lambda: 0, 0, board, lambda: lost[0])
        world.nursery.start_soon(first.wait)
        for node in world.nodes:
            node.crash()
        await world.swarm.timers.sleep(30.0)
        assert first.is_missing
        assert board.state == "waiting"
        assert board.reason.startswith("waits for the state of round 7, for ")
        lost[0] = 0  # it has come
        await world.swarm.timers.sleep(2.0)
        assert not first.is_missing

    after_rounds(1, check)


def test_peer_that_has_acked_the_first_round_may_finish_it_alone() -> None:
    async def check(world: World) -> None:
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        board = StatusBoard(PeerId("founder"), world.nodes[0].clock, 0.0)
        acked = AckedRecord(Ballot(0, PeerId("founder")), b"a record")
        assert not FirstState(chain, OpenRound(acked=acked), lambda: 1, 0, board).is_missing
        assert FirstState(chain, OpenRound(), lambda: 1, 0, board).is_missing

    after_rounds(1, check)


def test_peer_that_leaves_while_it_waits_says_that_it_leaves() -> None:
    async def check(world: World) -> None:
        chain = new_chain(world, MemoryDisk())
        await chain.restore()
        board = StatusBoard(PeerId("newcomer"), world.nodes[0].clock, 0.0, state="catching up")
        first = FirstState(chain, OpenRound(), lambda: 5, 0, board)
        world.nursery.start_soon(first.wait)
        await world.swarm.timers.sleep(30.0)
        assert board.state == "waiting"
        board.say("leaving", "asked to")
        await world.swarm.timers.sleep(5.0)
        assert (board.state, board.reason) == ("leaving", "asked to")

    after_rounds(1, check)
