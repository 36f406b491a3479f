"""A keeper's audits from the draw to the verdict, with the real trainer; the rounds and the host are made up."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

import pytest
import structlog
import torch
import trio
import trio.testing

from averaging.rounds.audit.work_fetch import ShownWork
from averaging.rounds.unit_service import RoundService
from coordinator.policy.audited_work_core import KnownVerdict, passes
from peer.audits.audit_turns import LONGEST_STEP_S, AuditTurns
from peer.audits.trainer_state import state_of
from peer.audits.work_auditing import ASKED_AGAIN_FOR_S, AUDIT_WITHIN_S, PAUSED_FOR_S, AuditTools, WorkAuditing
from peer.scores.scoring_core import TimeBudget
from peer.training.worker_channel import Command, Redone, Reply
from protocol.errors import RefusedError, UnreachableError
from protocol.host.work_verdict import WorkVerdict, decode_verdict
from protocol.identity.standing import PeerStanding
from protocol.ids import CommitId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import CommitRecord, Contributor, SliceRecord
from protocol.rounds.messages.requests import StepsTaken
from protocol.tensors.tensor_schema import ChunkGrid
from tests.peer.audits.redone_world import INNER, NUM_PEERS, SIGNERS, STEPS, World, lies, put_state
from tests.protocol.rounds.messages.test_wire import RECORD

LENGTH = 1024
AUDITOR, CONTRIBUTOR = 0, NUM_PEERS - 1
ME, STRANGER = SIGNERS[AUDITOR].peer_id, SIGNERS[CONTRIBUTOR].peer_id
USUAL = 0.85
"""The usual fit of this world."""


def _id(number: int) -> CommitId:
    return CommitId(bytes([number]) * 32)


def _root(peer: int) -> Root:
    return Root(bytes([100 + peer]) * 32)


@dataclass
class _Scene:
    """A keeper in a run whose commits are made here.

    Attributes:
        sent_N: what the stranger sent. told: the steps that it tells.
        ops: the orders to the training process. doing: what the audit says that it does.
        turn_s: duration of a turn; 0 for as long as it takes. wait_s: until an own step ends. for_s: duration of the scene.
        is_away: whether the stranger answers nothing now. asked_s: when it was asked again. stays: a commit after a minute counts
            it, too.
        goes_on: rounds go on while the audit is under way, and each may be audited.
    """

    world: World
    sent_N: torch.Tensor
    told: StepsTaken | None
    share: float = 1.0
    standing: PeerStanding = PeerStanding.KEEPER
    host_errors: list[Exception] = field(default_factory=list)
    ops: list[str] = field(default_factory=list)
    verdicts: list[WorkVerdict] = field(default_factory=list)
    doing: list[str] = field(default_factory=list)
    allowed: Callable[[], bool] = lambda: True
    first_redo_s: float = 0.0
    turn_s: float = 0.0
    wait_s: float = 0.0
    goes_on: bool = False
    for_s: float = 1000.0
    draw: Callable[[], float] = random.Random(1).random
    is_away: Callable[[], bool] = lambda: False
    stays: bool = True
    asked_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.turns = AuditTurns(self.world.trainers[AUDITOR])
        self.grid = ChunkGrid(len(self.sent_N), LENGTH)
        begun = self.world.begun[AUDITOR]
        self.links = [self._link(1, 1, begun.schedule_tokens - 640), self._link(2, 1, begun.schedule_tokens)]
        self.head, self._changed = self.links[0], trio.Event()
        tools = SimpleNamespace(grid=self.grid)
        self.service = SimpleNamespace(
            state=SimpleNamespace(link=self.head),
            chain=SimpleNamespace(tools=tools, links=self.links[:1]),
            wait_changed=self._wait,
            wait_adopted=trio.lowlevel.checkpoint,
            work=SimpleNamespace(fetch=self._fetch, steps=self._steps),
        )

    def _link(self, number: int, first: int, total_tokens: int) -> ChainLink:
        tokens = STEPS * INNER.batch_tokens
        counted = tuple(Contributor(SIGNERS[peer].peer_id, 1, _root(peer), tokens, tokens) for peer in range(NUM_PEERS))
        both = tuple(entry for entry in counted if entry.peer in (ME, STRANGER))
        record = replace(
            RECORD,
            parent=_id(number - 1),
            index=number,
            slices=(SliceRecord(0, self.grid.num_chunks, ME, Root(bytes(32)), ()),),
            contributors=both,
        )
        return ChainLink(record.unit, _id(number), number, (ME,), total_tokens, 1, record)

    async def _wait(self) -> None:
        await self._changed.wait()

    def commit(self, link: ChainLink) -> None:
        self.service.chain.links.append(link)
        self.service.state.link = link
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _fetch(self, record: CommitRecord, entry: Contributor, chunks: Sequence[int]) -> ShownWork:
        assert record.contributor(STRANGER) == entry
        shown = {chunk: self.sent_N[slice(*self.grid.bounds(chunk))] for chunk in chunks}
        return ShownWork(None if self.is_away() else self.told, shown)

    async def _steps(self, record: CommitRecord, entry: Contributor) -> StepsTaken | None:
        assert record.contributor(STRANGER) == entry
        self.asked_s.append(trio.current_time())
        return None if self.is_away() else self.told

    async def _order(self, command: Command) -> Reply | None:
        self.ops.append(command.op)
        if command.op == "audit_redo" and not self.first_redo_s:
            self.first_redo_s = trio.current_time()
        if command.op == "audit_keep":
            redone = self.turns.keep_next()
        elif command.redo is not None:
            if self.goes_on:
                self.turns.note_snapshot()
            await trio.sleep(self.wait_s + self.turn_s)
            redone = self.turns.redo(command.redo)
            redone = redone.model_copy(update={"took_s": self.turn_s or redone.took_s})
        else:
            self.turns.forget()
            redone = Redone()
        sent = Reply(number=1, redone=redone).model_dump_json()
        return Reply.model_validate_json(sent)

    async def _send(self, sealed: bytes) -> None:
        if self.host_errors:
            raise self.host_errors.pop(0)
        self.verdicts.append(decode_verdict(sealed))

    async def _signed(self, payload: bytes) -> bytes:
        return payload

    async def run(self, *, has_beginning: bool = True) -> None:
        """Two commits: the round between them is drawn before the first."""
        standings = {STRANGER: PeerStanding.STRANGER, **({} if self.standing.may_vote else {ME: self.standing})}
        tools = AuditTools(
            ME,
            self.share,
            INNER.batch_tokens,
            self._order,
            lambda: standings,
            self.allowed,
            lambda: 1.0,
            self._signed,
            self._send,
            lambda _: None,
            self.doing.append,
            self.draw,
        )
        auditing, trainer = WorkAuditing(tools, TimeBudget(trio.current_time())), self.world.trainers[AUDITOR]
        before = state_of(trainer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(auditing.run, cast("RoundService", self.service))
            await trio.testing.wait_all_tasks_blocked()
            if has_beginning:
                put_state(trainer, self.world.begun[AUDITOR])
                self.turns.note_load()
                put_state(trainer, before)
            self.commit(self.links[1])
            await trio.testing.wait_all_tasks_blocked()
            if self.goes_on:
                begun = self.world.begun[AUDITOR]
                put_state(trainer, replace(begun, schedule_tokens=begun.schedule_tokens + 640))
                self.turns.note_load()
                put_state(trainer, before)
            self.commit(self._link(3, 2, self.links[1].total_tokens + 640))
            await trio.sleep(60.0)
            if self.stays:
                later = self._link(4, 3, self.links[1].total_tokens + 1280)
                self.service.chain.links.append(later)  # its own audit is not of this scene
            await trio.sleep(self.for_s - 60.0)
            nursery.cancel_scope.cancel()
        assert all(torch.equal(a, b) for a, b in zip(before.values, state_of(trainer).values, strict=True))


def _told(world: World, num_steps: int = STEPS) -> StepsTaken:
    return StepsTaken(_root(CONTRIBUTOR), world.first_step, num_steps)


def _scene(world: World, sent_N: torch.Tensor | None = None) -> _Scene:
    return _Scene(world, world.deltas[CONTRIBUTOR] if sent_N is None else sent_N, _told(world))


def _passes(verdict: WorkVerdict) -> bool:
    known = KnownVerdict(
        ME, verdict.contributor, verdict.commit, verdict.gap_ppm / 1e6, verdict.length_permille / 1e3, 0.0
    )
    return passes(known, USUAL)


async def test_honest_work_of_a_stranger_gets_a_verdict_that_passes(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = _scene(world)
    await scene.run()
    (verdict,) = scene.verdicts
    assert (verdict.contributor, verdict.root, verdict.commit) == (STRANGER, _root(CONTRIBUTOR), _id(3))
    assert _passes(verdict)
    assert scene.ops.count("audit_redo") > 1, "its steps are taken in turns"


async def test_an_audit_tells_how_far_it_is_and_when_it_has_ended(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = _scene(world)
    await scene.run()
    assert scene.doing[0].endswith(f"again: 0 of {2 * STEPS} taken")
    assert any(f" {STEPS} of {2 * STEPS} taken" in each for each in scene.doing)
    assert scene.doing[-1] == ""


async def test_memory_of_a_kept_beginning_is_freed_once_its_round_is_audited_and_no_other_is_drawn(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    draws = iter([0.0])
    scene = replace(_scene(world), share=0.5, draw=lambda: next(draws, 0.9))
    await scene.run()
    assert len(scene.verdicts) == 1
    assert (scene.ops[0], scene.ops[-1]) == ("audit_keep", "audit_forget")
    assert scene.ops.count("audit_keep") == 1


@pytest.mark.parametrize("kind", ["noise", "a copy of another's, made larger", "half of the steps", "zeros"])
async def test_work_that_a_stranger_did_not_do_gets_a_verdict_that_fails(
    kind: str, world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = _scene(world, lies(world, CONTRIBUTOR, AUDITOR)[kind])
    await scene.run()
    (verdict,) = scene.verdicts
    assert not _passes(verdict)


@pytest.mark.parametrize(
    "told", [None, StepsTaken(_root(CONTRIBUTOR), 0, STEPS // 2), StepsTaken(_root(CONTRIBUTOR), 0, 2 * STEPS)]
)
async def test_a_contributor_that_tells_no_steps_or_others_than_it_claims_is_told_of_to_the_host(
    told: StepsTaken | None, world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = _scene(world)
    scene.told = told
    await scene.run()
    (verdict,) = scene.verdicts
    assert (verdict.contributor, verdict.root, verdict.is_untold) == (STRANGER, _root(CONTRIBUTOR), True)
    assert "audit_redo" not in scene.ops


async def test_a_contributor_that_is_asked_while_it_starts_again_tells_its_steps_later_and_is_judged_by_them(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    began_s = trio.current_time()
    scene = replace(_scene(world), is_away=lambda: trio.current_time() < began_s + 55.0)
    await scene.run()
    (verdict,) = scene.verdicts
    assert not verdict.is_untold
    assert _passes(verdict)


async def test_a_contributor_that_goes_away_after_its_round_and_comes_into_no_other_is_no_silent_one(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = replace(_scene(world), is_away=lambda: True, stays=False, for_s=2.0 * ASKED_AGAIN_FOR_S)
    await scene.run()
    assert scene.verdicts == []
    assert 0.0 < scene.asked_s[-1] - scene.asked_s[0] <= ASKED_AGAIN_FOR_S


async def test_a_contributor_that_answers_no_auditor_and_is_counted_again_is_told_of_to_the_host(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = replace(_scene(world), is_away=lambda: True)
    await scene.run()
    (verdict,) = scene.verdicts
    assert verdict.is_untold


async def test_a_round_whose_beginning_was_not_kept_is_not_judged(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = _scene(world)
    await scene.run(has_beginning=False)
    assert scene.verdicts == []


@pytest.mark.parametrize(
    "changes", [{"share": 0.0}, {"standing": PeerStanding.MEMBER}, {"standing": PeerStanding.STRANGER}]
)
async def test_without_a_share_and_without_a_vote_nothing_is_kept_and_nobody_judged(
    changes: dict[str, object], world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = replace(_scene(world), **changes)
    await scene.run()
    assert (scene.ops, scene.verdicts) == ([], [])


async def test_a_host_that_is_away_gets_the_verdict_later_and_one_that_refuses_it_is_left_alone(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = _scene(world)
    scene.host_errors = [UnreachableError("nobody", "a host"), UnreachableError("nobody", "a host")]
    await scene.run()
    assert len(scene.verdicts) == 1
    refused = _scene(world)
    refused.host_errors = [RefusedError("a verdict", "none")]
    await refused.run()
    assert refused.verdicts == []


async def test_steps_wait_while_the_owner_allows_no_training(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = replace(_scene(world), allowed=lambda: trio.current_time() > 500.0)
    with structlog.testing.capture_logs() as logs:
        await scene.run()
    assert len(scene.verdicts) == 1
    assert [(each["event"], each.get("steps")) for each in logs] == [("audit_begun", STEPS), ("work_audited", None)]
    assert scene.ops.count("audit_redo") > 1
    assert scene.first_redo_s > 500.0


async def test_an_audit_with_long_steps_comes_to_its_verdict_in_a_tenth_of_the_time(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = replace(_scene(world), turn_s=LONGEST_STEP_S, for_s=AUDIT_WITHIN_S)
    await scene.run()
    assert len(scene.verdicts) == 1


async def test_an_audit_that_is_longer_than_a_round_comes_to_its_verdict_where_each_round_may_be_audited(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = replace(_scene(world), goes_on=True)
    await scene.run()
    assert [_passes(verdict) for verdict in scene.verdicts] == [True]


async def test_the_wait_for_own_steps_makes_turns_no_shorter(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    scene = replace(_scene(world), turn_s=0.5, wait_s=LONGEST_STEP_S)
    await scene.run()
    assert len(scene.verdicts) == 1
    assert scene.ops.count("audit_redo") < STEPS, "turns of more and more steps"


async def test_a_long_pause_ends_an_audit_and_frees_its_memory(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    draws = iter([0.0])
    scene = replace(_scene(world), share=0.5, draw=lambda: next(draws, 0.9), allowed=lambda: False)
    await replace(scene, for_s=PAUSED_FOR_S + 100.0).run()
    assert scene.ops == ["audit_keep", "audit_forget"]
    assert scene.verdicts == []
