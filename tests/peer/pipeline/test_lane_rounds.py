"""A lane's share in its round: it waits for the commit, counts once, and is lost, which is said, where the round came without it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import cast

import pytest
import torch
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.network.seams.interfaces import NoPart
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.state.state import UnitState
from peer.pipeline.lane_rounds import LaneView, StageRounds
from peer.pipeline.lane_shares import StageShares
from peer.pipeline.stage.stage_channel import StageReply
from peer.pipeline.transport.lane_work import LaneShare
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.pipeline.stage_machine import LaneConfig
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.lane_parts import LanePart
from protocol.rounds.messages.record import Ballot, CommitRecord, Contributor, OuterStep, SliceRecord

CONFIG = LaneConfig("1f1b", 3, 4, 10, 5, 1024)
FIRST, SECOND = CommitId(b"1" * 32), CommitId(b"2" * 32)
UNIT, ROOT = UnitName("stage-1"), Root(bytes(32))
ME, OTHER = PeerId("me"), PeerId("other")


@dataclass
class _Chain:
    """The part of a chain that is read."""

    state: UnitState
    links: list[ChainLink]

    @property
    def head(self) -> ChainLink:
        return self.links[-1]


def _chain() -> _Chain:
    values_N = torch.arange(4, dtype=torch.float32)
    state = UnitState(UNIT, FIRST, 3, 4096, values_N, torch.zeros(4))
    return _Chain(state, [ChainLink(UNIT, FIRST, 3, (ME,), 4096, 1)])


@dataclass(frozen=True)
class _Lanes:
    """As LaneView."""

    num_lanes: int = 0
    is_in_lane: bool = False


NO_LANES = _Lanes()


async def _before_the_end(_round: int) -> bool:
    return False


def _rounds(
    chain: _Chain,
    lanes: LaneView = NO_LANES,
    is_after_the_end: Callable[[int], Awaitable[bool]] = _before_the_end,
) -> StageRounds:
    rounds = StageRounds(StageShares(cast("UnitChain", chain), CONFIG, is_after_the_end), lanes)
    rounds.shares.newest()
    return rounds


def _share(tokens: int = 10240) -> LaneShare:
    return LaneShare(7, 1, 3, tokens, torch.ones(4))


def _commit(chain: _Chain, *counted: LaneShare, by: PeerId = ME) -> torch.Tensor:
    """The next one: it counts these, or something else where it is said to count nothing."""
    lanes = tuple(LanePart(share.lane, share.round, share.tokens) for share in counted)
    tokens, head = sum(part.tokens for part in lanes) or 1, CommitId(bytes([chain.state.index]) * 32)
    contributors = (Contributor(by, 1, ROOT, tokens, tokens, lanes),)
    slices, outer = (SliceRecord(0, 1, by, ROOT, ()),), OuterStep("mean", 1.0, 0.0)
    record = CommitRecord(
        UNIT, chain.state.head, chain.state.index + 1, Ballot(0, by), slices, contributors, "fp32", tokens, tokens, outer,
        1, (by,), (1,),
    )  # fmt: skip
    chain.links = [*chain.links, ChainLink(UNIT, head, record.index, (by,), 4096 + tokens, 1, record)]
    anchor_N = torch.full((4,), float(record.index + 1))
    chain.state = replace(chain.state, head=head, index=record.index, anchor_N=anchor_N)
    return anchor_N


async def test_a_share_waits_for_its_commit_and_the_lane_goes_on_from_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    rounds = _rounds(chain)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_goes_on_from, rounds, 5.0)
        await trio.testing.wait_all_tasks_blocked()
        assert rounds.progress().tokens_ready == 10240
        snapshot = await rounds.snapshot()
        assert (snapshot.tokens, snapshot.num_steps, snapshot.next_step) == (10240, 10, 30)
        assert snapshot.lanes == (LanePart(7, 3, 10240),)
        anchor_N = _commit(chain, _share())
        with capture_logs() as logs:
            await rounds.shift(anchor_N, credited_tokens=10240, schedule_tokens=0)
    assert not logs
    assert rounds.progress().tokens_ready == 0


async def test_where_it_is_not_known_how_a_commit_moved_the_parameters_what_it_does_not_count_is_lost_and_said(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    rounds = _rounds(chain)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_goes_on_from, rounds, 5.0)
        await trio.testing.wait_all_tasks_blocked()
        anchor_N = _commit(chain)
        with capture_logs() as logs:
            await rounds.shift(anchor_N, credited_tokens=0, schedule_tokens=0)
    assert [(log["event"], log["tokens"]) for log in logs] == [("lane_share_lost", 10240)]


async def test_a_share_of_a_round_that_is_over_is_lost_at_once(autojump_clock: trio.testing.MockClock) -> None:
    chain = _chain()
    rounds = _rounds(chain)
    _commit(chain)
    with capture_logs() as logs:
        await _goes_on_from(rounds, 5.0)
    assert logs[0]["reason"] == "the round came without it"
    assert rounds.progress().tokens_ready == 0


async def test_a_share_of_a_step_after_the_runs_last_round_is_brought_into_none(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    asked: list[int] = []

    async def is_after_the_end(round_: int) -> bool:
        asked.append(round_)
        return True

    rounds = _rounds(chain, is_after_the_end=is_after_the_end)
    with trio.fail_after(1.0):
        anchor_N = await rounds.shares.average(_share())
    assert torch.equal(anchor_N, chain.state.anchor_N)
    assert asked == [3]
    assert rounds.progress().tokens_ready == 0


async def test_without_a_lane_there_is_nothing_to_contribute_and_with_one_it_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    with pytest.raises(NoPart, match="a spare, which serves no lane"):
        await _rounds(_chain()).snapshot()
    rounds = _rounds(_chain(), _Lanes(is_in_lane=True))
    with trio.move_on_after(30.0) as waiting:
        await rounds.snapshot()
    assert waiting.cancelled_caught


async def test_a_round_is_due_when_all_lanes_that_are_kept_have_brought_their_shares(
    autojump_clock: trio.testing.MockClock,
) -> None:
    assert _rounds(_chain()).progress().due_tokens == 0
    rounds = _rounds(_chain(), _Lanes(num_lanes=2))
    assert rounds.progress().due_tokens == 2 * 10 * 1024


async def test_steps_that_count_are_counted_and_the_loss_is_told(autojump_clock: trio.testing.MockClock) -> None:
    rounds = _rounds(_chain())
    rounds.shares.stepped(StageReply(number=1, loss_nats=2.5))
    rounds.shares.stepped(StageReply(number=2, counts=False))
    progress = rounds.progress()
    assert (progress.tokens_trained, progress.loss_nats) == (1024, 2.5)
    rounds.shares.hold("its owner holds it back")
    assert (rounds.progress().state, rounds.progress().reason) == ("held", "its owner holds it back")


async def test_a_lane_that_ends_while_its_share_waits_brings_it_again_and_it_counts_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rounds, ready = _rounds(_chain()), list[int]()
    with trio.move_on_after(1.0):
        await rounds.shares.average(_share())
    async with trio.open_nursery() as nursery:
        for share in (_share(), replace(_share(), lane=8), _share()):
            nursery.start_soon(rounds.shares.average, share)
            await trio.testing.wait_all_tasks_blocked()
            ready.append(rounds.progress().tokens_ready)
        assert (await rounds.snapshot()).tokens == 2 * 10240
        nursery.cancel_scope.cancel()
    assert ready == [10240, 2 * 10240, 2 * 10240]


async def _ready_with(rounds: StageRounds, share: LaneShare) -> int:
    """Tokens ready while a share waits."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rounds.shares.average, share)
        await trio.testing.wait_all_tasks_blocked()
        ready = rounds.progress().tokens_ready
        nursery.cancel_scope.cancel()
    return ready


async def test_a_lane_that_goes_back_to_the_end_of_a_round_that_is_over_counts_no_second_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    rounds = _rounds(chain)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_goes_on_from, rounds, 5.0)
        await trio.testing.wait_all_tasks_blocked()
        await rounds.shift(_commit(chain, _share()), credited_tokens=10240, schedule_tokens=0)
    rounds.shares.newest()  # it went on, was called back before the next snapshot was whole, and brings the same again
    with capture_logs() as logs:
        await _goes_on_from(rounds, 5.0)
    assert not logs, "it was counted"
    assert rounds.progress().tokens_ready == 0


async def test_a_spare_in_the_place_of_who_brought_a_round_that_is_over_brings_it_into_no_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    _commit(chain)
    rounds = _rounds(chain)
    with capture_logs() as logs:
        await _goes_on_from(rounds, 5.0)
    assert [log["event"] for log in logs] == ["lane_share_lost"]
    assert await _ready_with(rounds, replace(_share(), round=4)) == 10240, "the next one counts"


async def test_a_lane_at_a_stage_that_has_lost_rounds_counts_from_where_it_began(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rounds = _rounds(_chain())
    rounds.shares.begins(9)
    gift = LaneShare(9, 1, 9, 2560, torch.ones(4))
    assert await rounds.shares.take_gift(PeerId("stage-2"), gift, _confirms) == ""
    assert await _ready_with(rounds, replace(_share(), round=9)) == 10240 + 2560


async def _confirms() -> str:
    return ""


async def _refuses() -> str:
    return "it is another's to bring"


async def test_a_part_that_was_confirmed_when_the_round_had_moved_on_is_not_brought_into_the_next_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    rounds = _rounds(chain)

    async def confirms_late() -> str:
        chain.state = replace(chain.state, index=4, head=SECOND)
        return ""

    gift = LaneShare(9, 1, 3, 2560, torch.ones(4))
    assert "here it is round 5" in await rounds.shares.take_gift(PeerId("stage-2"), gift, confirms_late)
    assert rounds.progress().tokens_ready == 0


async def _goes_on_from(rounds: StageRounds, value: float) -> None:
    assert torch.equal(await rounds.shares.average(_share()), torch.full((4,), value))


async def test_what_a_lane_left_behind_counts_by_its_tokens_beside_our_own_share_and_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    rounds = _rounds(chain)
    gift = LaneShare(9, 1, 3, 10240 // 4, torch.full((4,), 6.0))
    giver = PeerId("stage-2")
    assert await rounds.shares.take_gift(giver, replace(gift, lane=8), _refuses) == "it is another's to bring"
    assert await rounds.shares.take_gift(giver, gift, _confirms) == ""
    assert await rounds.shares.take_gift(giver, gift, _refuses) == "", "its answer was lost on the way"
    assert "one that is here" in await rounds.shares.take_gift(giver, replace(gift, tokens=10240 // 2), _confirms)
    assert "here it is round 4" in await rounds.shares.take_gift(giver, replace(gift, lane=8, round=2), _refuses)
    assert "stage 0" in await rounds.shares.take_gift(giver, replace(gift, stage=0), _refuses)
    alone = await rounds.snapshot()
    assert (alone.tokens, alone.theta_N.tolist()) == (2560, [6.0] * 4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_goes_on_from, rounds, 5.0)
        await trio.testing.wait_all_tasks_blocked()
        both = await rounds.snapshot()
        assert both.tokens == rounds.progress().tokens_ready == 12800
        assert both.theta_N.tolist() == [2.0] * 4  # (4 x 1 + 1 x 6) / 5
        with capture_logs() as logs:
            await rounds.shift(_commit(chain, _share(), gift), credited_tokens=12800, schedule_tokens=0)
    assert not logs
    assert rounds.progress().tokens_ready == 0


async def test_a_part_that_waits_here_and_is_given_too_is_brought_once_also_when_its_seat_is_lost_then(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rounds = _rounds(_chain())
    for _ in range(2):  # what was given before the lane brings it, and after
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rounds.shares.average, _share())
            await trio.testing.wait_all_tasks_blocked()
            assert await rounds.shares.take_gift(OTHER, _share(), _confirms) == ""
            assert (await rounds.snapshot()).lanes == (LanePart(7, 3, 10240),)
            assert rounds.progress().tokens_ready == 10240
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert (await rounds.snapshot()).lanes == (LanePart(7, 3, 10240),)


async def test_a_share_whose_seat_is_given_back_before_the_commit_is_brought_here_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    rounds = _rounds(_chain())
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rounds.shares.average, _share())
            await trio.testing.wait_all_tasks_blocked()
            assert rounds.progress().tokens_ready == 10240
            nursery.cancel_scope.cancel()
    assert [(log["event"], log["tokens"]) for log in logs] == [("lane_share_withdrawn", 10240)]
    assert rounds.progress().tokens_ready == 0
    with pytest.raises(NoPart):
        await rounds.snapshot()


async def _moved(rounds: StageRounds, chain: _Chain, *counted: LaneShare, by: PeerId = ME) -> None:
    """A commit, as the round service tells it."""
    shift_N = _commit(chain, *counted, by=by)
    await rounds.set_anchor(chain.state.anchor_N)
    await rounds.shift(shift_N, credited_tokens=0, schedule_tokens=0)


async def _reported(chain: _Chain) -> StageRounds:
    rounds = _rounds(chain)
    await rounds.set_anchor(chain.state.anchor_N)
    return rounds


async def test_what_a_commit_does_not_count_is_brought_into_the_next_one_as_far_from_it_and_makes_it_due_no_sooner(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    rounds = await _reported(chain)
    delta_N = torch.ones(4) - chain.state.anchor_N
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_goes_on_from, rounds, 5.0)
            await trio.testing.wait_all_tasks_blocked()
            await _moved(rounds, chain)
        assert (rounds.shares.owed_tokens, rounds.progress().tokens_ready) == (10240, 0)
        await _goes_on_from(rounds, 5.0)  # the lane went back to the end of that round: nothing comes twice
        snapshot = await rounds.snapshot()
        assert snapshot.lanes == (LanePart(7, 3, 10240),)
        torch.testing.assert_close(snapshot.theta_N, chain.state.anchor_N + delta_N)
        await _moved(rounds, chain, _share())
    assert [log["event"] for log in logs] == ["lane_share_owed"]
    assert rounds.shares.owed_tokens == 0


async def test_a_share_that_comes_when_its_round_is_over_is_brought_into_the_next_one_beside_that_ones(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    rounds = await _reported(chain)
    delta_N = torch.ones(4) - chain.state.anchor_N
    await _moved(rounds, chain)
    await _goes_on_from(rounds, 5.0)
    rounds.shares.newest()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rounds.shares.average, replace(_share(), round=4))
        await trio.testing.wait_all_tasks_blocked()
        assert rounds.progress().tokens_ready == 10240
        snapshot = await rounds.snapshot()
        nursery.cancel_scope.cancel()
    assert snapshot.lanes == (LanePart(7, 4, 10240), LanePart(7, 3, 10240))
    torch.testing.assert_close(snapshot.theta_N, (torch.ones(4) + chain.state.anchor_N + delta_N) / 2)


async def test_a_share_that_another_brought_before_it_lost_its_seat_is_counted_and_neither_owed_nor_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    rounds = await _reported(chain)
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_goes_on_from, rounds, 5.0)
            await trio.testing.wait_all_tasks_blocked()
            await _moved(rounds, chain, _share(), by=OTHER)
        rounds.shares.newest()
        await _goes_on_from(rounds, 5.0)
        assert await rounds.shares.take_gift(OTHER, _share(), _refuses) == "", "who died had brought it"
    assert not logs
    assert (rounds.shares.owed_tokens, rounds.progress().tokens_ready) == (0, 0)


async def test_what_is_owed_when_the_run_is_over_is_said_to_be_in_no_round(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    rounds = await _reported(chain)
    rounds.shares.say_owed()
    await _moved(rounds, chain)
    await _goes_on_from(rounds, 5.0)
    with capture_logs() as logs:
        rounds.shares.say_owed()
    assert [(log["event"], log["lane"], log["tokens"]) for log in logs] == [("lane_share_lost", 7, 10240)]
    assert "no commit of this stage counts it" in logs[0]["reason"]


async def test_what_is_owed_moves_with_every_commit_that_does_not_count_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    rounds = await _reported(chain)
    delta_N = torch.ones(4) - chain.state.anchor_N
    await _moved(rounds, chain)
    await _goes_on_from(rounds, 5.0)
    await _moved(rounds, chain)
    torch.testing.assert_close((await rounds.snapshot()).theta_N, torch.full((4,), 6.0) + delta_N)


async def test_a_part_of_the_round_before_is_taken_for_the_next_one_and_one_of_an_older_round_is_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    rounds = await _reported(chain)
    await _moved(rounds, chain)
    assert "here it is round 5" in await rounds.shares.take_gift(OTHER, replace(_share(), round=2), _confirms)
    assert await rounds.shares.take_gift(OTHER, _share(), _confirms) == ""
    assert (rounds.shares.owed_tokens, rounds.progress().tokens_ready) == (10240, 0)


async def test_a_state_that_no_commit_led_to_ends_what_is_owed_and_that_is_said(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chain = _chain()
    rounds = await _reported(chain)
    await _moved(rounds, chain)
    await _goes_on_from(rounds, 5.0)
    _commit(chain)
    with capture_logs() as logs:
        await rounds.set_anchor(chain.state.anchor_N)
        await rounds.load(chain.state.anchor_N, schedule_tokens=0)
    assert [(log["event"], log["lanes"]) for log in logs] == [("lane_share_lost", [7])]
    assert rounds.shares.owed_tokens == 0
