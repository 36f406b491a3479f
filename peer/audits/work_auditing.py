"""Does some of others' work again, and brings the signed verdicts to the host: one audit at a time, while training goes on.

Before a round it is drawn in private whether this peer audits it, since the state at its beginning is needed. After the commit a
contributor is drawn, and some chunks of its contribution are fetched. Its steps are then taken in short turns, while the owner allows
training, and in a small share of the time. If anything fails, only the audit is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from secrets import SystemRandom, token_hex
from typing import Final, Protocol, runtime_checkable

import structlog
import torch
import trio

from averaging.rounds.audit.work_fetch import ShownWork
from averaging.rounds.lineage.past.offered_work import MOST_STEPS_KNOWN
from averaging.rounds.unit_service import RoundService
from peer.audits.work_audit_core import (
    Draw,
    Finding,
    Products,
    audits_round,
    claimed_steps,
    compared,
    compared_chunks,
    drawn_contributor,
    is_large,
    why_untold,
)
from peer.scores.scoring_core import TimeBudget, next_size
from peer.training.worker_channel import Command, Redone, RedoOrder, Reply
from protocol.errors import MIGHT_WORK_LATER, PotluckError
from protocol.host.work_verdict import WorkVerdict, encode_verdict, untold_of, verdict_of
from protocol.identity.names import peer_name
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import CommitRecord, Contributor
from protocol.rounds.messages.requests import StepsTaken
from protocol.tables import several

log = structlog.get_logger()

AUDIT_WITHIN_S: Final = 24 * 3600.0
"""An audit that takes longer is given up. Its steps, and as many again, take a tenth of the time: 20 times a round's training."""

PAUSED_FOR_S: Final = 900.0
"""An audit is given up, and its memory freed, once its owner has allowed no training for so long."""

ADOPTED_WITHIN_S: Final = 60.0
"""How long to wait until the trainer has applied a commit; after that no state is kept for an audit."""

ORDER_WITHIN_S: Final = 600.0
"""Limit for one order to the training process, which may be starting."""

SEND_WITHIN_S: Final = 300.0
SEND_EVERY_S: Final = 3.0
"""A verdict is sent to a host that is away for so long, and so often."""

ASKED_AGAIN_FOR_S: Final = AUDIT_WITHIN_S
ASKED_EVERY_S: Final = 10.0
"""A contributor that tells no steps is asked again for so long, and so often: it may be starting again, or its line be down."""

ASKED_FOR_ROUNDS: Final = MOST_STEPS_KNOWN // 2
"""It is asked for so many rounds at most, since it forgets its steps after some more."""

LOOK_EVERY_S: Final = 1.0
"""Between two looks at whether the owner allows training again."""

MOST_TURN_STEPS: Final = 256
MOST_TOLD: Final = 4096
"""Contributors whose last steps are remembered; beyond that the oldest are forgotten."""


@runtime_checkable
class TakesOrders(Protocol):
    """A trainer whose one process holds the whole model and does work again by order."""

    async def order(self, command: Command) -> Reply | None:
        """Have the process obey; None if it dies first."""
        ...


@dataclass(frozen=True)
class AuditTools:
    """The peer's tools for audits.

    Attributes:
        share: of rounds, 0 to 1.
        batch_tokens: of a local step.
        order: gives the training process an order.
        standings: of peers that are no keepers, as they are now.
        may_compute: whether the owner allows training now.
        slowdown: training runs at 1 / slowdown of full speed now.
        signed, send: a verdict in this peer's envelope; brings one to the host.
        audited: told of each verdict that the host took.
        doing: told the state of an audit in words; "" at its end.
        draw: numbers in [0, 1) that nobody else can guess.
    """

    me: PeerId
    share: float
    batch_tokens: int
    order: Callable[[Command], Awaitable[Reply | None]]
    standings: Callable[[], Mapping[PeerId, PeerStanding]]
    may_compute: Callable[[], bool]
    slowdown: Callable[[], float]
    signed: Callable[[bytes], Awaitable[bytes]]
    send: Callable[[bytes], Awaitable[None]]
    audited: Callable[[WorkVerdict], None]
    doing: Callable[[str], None]
    draw: Draw = SystemRandom().random


@dataclass(frozen=True, eq=False)
class _Drawn:
    """A contribution to audit, with the steps that were told and the chunks that were shown, of `chunk_elements` each."""

    link: ChainLink
    base_tokens: int
    entry: Contributor
    steps: StepsTaken
    work: ShownWork
    chunk_elements: int


@dataclass
class WorkAuditing:
    """The audits of one peer over the rounds of the whole model."""

    tools: AuditTools
    budget: TimeBudget
    _asked: deque[bytes] = field(default_factory=lambda: deque(maxlen=2))
    """Heads at which the training process was asked to keep the next beginning."""

    _told: dict[PeerId, int] = field(default_factory=dict)
    """The place in each contributor's data after the steps that it told last."""

    async def run(self, service: RoundService) -> None:
        """Audit until cancelled. Raises nothing of an audit."""
        head = service.state.link
        while True:
            await self._keep(service, head)
            await self._free(head)
            head = await next_link(service, head)
            drawn = await self._drawn(service, head)
            if drawn is None:
                continue
            # To keep another beginning now would drop the one that this audit begins from twice.
            with trio.move_on_after(AUDIT_WITHIN_S) as within:
                await self._audit(drawn)
            if within.cancelled_caught:
                log.info("audit_given_up", reason=f"it took more than {AUDIT_WITHIN_S:.0f} s")
                await self._order(Command(op="audit_forget"))

    async def _keep(self, service: RoundService, head: ChainLink) -> None:
        """Draw whether to audit the round that begins at the next commit; if so, have the training process keep the state there."""
        if head.commit in self._asked or not audits_round(self.tools.share, self._standing, self.tools.draw):
            return
        with trio.move_on_after(ADOPTED_WITHIN_S):
            await service.wait_adopted()
            if service.state.link.commit == head.commit and await self._order(Command(op="audit_keep")) is not None:
                self._asked.append(head.commit)

    async def _free(self, head: ChainLink) -> None:
        """Free the kept states once no audit can need them: they take memory."""
        if self._asked and not any(each in (head.commit, head.parent) for each in self._asked):
            self._asked.clear()
            await self._order(Command(op="audit_forget"))

    @property
    def _standing(self) -> PeerStanding:
        return self.tools.standings().get(self.tools.me, PeerStanding.KEEPER)

    async def _order(self, command: Command) -> Redone | None:
        """The answer of the training process to an order; None where it died, or cannot do it."""
        reply: Reply | None = None
        with trio.move_on_after(ORDER_WITHIN_S):
            reply = await self.tools.order(command)
        redone = reply.redone if reply is not None else None
        if redone is not None and redone.problem:
            log.info("not_audited", reason=redone.problem)
            return None
        return redone

    async def _drawn(self, service: RoundService, link: ChainLink) -> _Drawn | None:
        """The contribution to audit of those that a commit counts; None where its round was not drawn or nothing can be compared. The
        host hears of a contributor that stays and tells no steps.
        """
        record, base = link.record, _before(service, link)
        if record is None or record.rewind or base is None or base.parent not in self._asked:
            return None
        tools, grid = self.tools, service.chain.tools.grid
        entry = self._drawn_entry(record)
        if entry is None:
            return None
        chunks = compared_chunks(record, entry.peer, grid.chunk_elements, tools.draw)
        work, steps, is_here = await self._shown(service, record, entry, chunks)
        why = why_untold(entry, steps, self._told.get(entry.peer, 0), tools.batch_tokens) if chunks and is_here else ""
        if why or steps is None or not work.chunks:
            log.info("not_audited", of=peer_name(entry.peer), reason=why or "nothing of its work was shown")
            if why:
                await self._bring(untold_of(link.unit, link.commit, entry.peer, entry.root))
            return None
        self._note_told(entry.peer, steps.first_step + steps.num_steps)
        return _Drawn(link, base.total_tokens, entry, steps, work, grid.chunk_elements)

    async def _shown(
        self, service: RoundService, record: CommitRecord, entry: Contributor, chunks: Sequence[int]
    ) -> tuple[ShownWork, StepsTaken | None, bool]:
        """The shown work of a contributor, its steps, and whether it stayed here: one that goes away after a round hides nothing.

        One that tells no steps is asked again until a later commit counts it, and once more. The kept states are freed where no audit
        can follow, and in a long pause.
        """
        if not chunks or not claimed_steps(entry, self.tools.batch_tokens):
            return ShownWork(None, {}), None, True
        work = await service.work.fetch(record, entry, chunks)
        if work.steps is not None:
            return work, work.steps, True
        allowed_s = trio.current_time()
        with trio.move_on_after(ASKED_AGAIN_FOR_S):
            while service.state.link.index <= record.index + ASKED_FOR_ROUNDS:
                await trio.sleep(ASKED_EVERY_S)
                allowed_s = trio.current_time() if self.tools.may_compute() else allowed_s
                if not work.chunks or trio.current_time() - allowed_s > PAUSED_FOR_S:
                    await self._forget()
                is_counted = _is_counted_after(service, record.index, entry.peer)
                steps = await service.work.steps(record, entry)
                if steps is not None or is_counted:
                    return work, steps, True
        return work, None, False

    async def _forget(self) -> None:
        """Free all kept states; a later order to redo work from one says that it is not there."""
        if self._asked:
            self._asked.clear()
            await self._order(Command(op="audit_forget"))

    def _drawn_entry(self, record: CommitRecord) -> Contributor | None:
        """The drawn contributor to a round in which this peer took enough steps itself; None where the drawn one took too few."""
        tools = self.tools
        contributors = [entry.peer for entry in record.contributors]
        own, peer = (
            record.contributor(tools.me),
            drawn_contributor(contributors, tools.me, tools.standings(), tools.draw),
        )
        entry = record.contributor(peer) if peer is not None else None
        if own is None or entry is None or not claimed_steps(own, tools.batch_tokens):
            return None
        if not is_large(entry, tools.batch_tokens):
            log.info("not_audited", of=peer_name(entry.peer), reason="it took too few steps")
            return None
        return entry

    def _note_told(self, peer: PeerId, until: int) -> None:
        self._told.pop(peer, None)
        self._told[peer] = until
        while len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]

    async def _audit(self, drawn: _Drawn) -> None:
        """Do the steps again, and bring the verdict to the host."""
        reason = "its steps are taken again, and as many on other text, in a tenth of this peer's time"
        log.info("audit_begun", of=peer_name(drawn.entry.peer), steps=drawn.steps.num_steps, reason=reason)
        try:
            redone_N = await self._redone(drawn, drawn.entry.peer)
            # windows of a name that nobody else knows are random ones
            is_redone = redone_N is not None
            control_N = await self._redone(drawn, f"control {token_hex(16)}", is_control=True) if is_redone else None
        finally:
            self.tools.doing("")
        finding = _finding(drawn.work, redone_N, control_N) if redone_N is not None and control_N is not None else None
        if finding is None:
            return
        link, entry = drawn.link, drawn.entry
        verdict = verdict_of(
            link.unit, link.commit, entry.peer, entry.root, gap=finding.gap, length_ratio=finding.length_ratio
        )
        log.info(
            "work_audited", of=peer_name(entry.peer), gap=round(finding.gap, 3), length=round(finding.length_ratio, 3)
        )
        await self._bring(verdict)

    async def _redone(self, drawn: _Drawn, reader: str, *, is_control: bool = False) -> torch.Tensor | None:
        """The delta of the drawn steps on the windows of `reader`: its compared chunks, float32, joined. None where the training
        process cannot make it.
        """
        steps, size, length = drawn.steps, 1, drawn.chunk_elements
        spans = [(chunk * length, chunk * length + len(sent_n)) for chunk, sent_n in drawn.work.chunks.items()]
        num_left = steps.num_steps
        while True:
            self.tools.doing(_progress(drawn, num_left, is_control=is_control))
            if not await self._is_allowed():
                log.info("audit_given_up", reason="training is paused")
                await self._forget()
                return None
            order = RedoOrder(
                schedule_tokens=drawn.base_tokens,
                peer=reader,
                first_step=steps.first_step,
                num_steps=steps.num_steps,
                turn_steps=size,
                spans=tuple(spans),
            )
            redone = await self._order(Command(op="audit_redo", redo=order))
            if redone is None:  # an order that came too late leaves a half-done audit there
                await self._forget()
                return None
            num_left = redone.num_left
            self.budget = self.budget.after(redone.took_s * self.tools.slowdown(), trio.current_time())
            if not num_left:
                return torch.frombuffer(bytearray(redone.delta), dtype=torch.float32)
            size = next_size(size, redone.took_s, MOST_TURN_STEPS)

    async def _is_allowed(self) -> bool:
        """Wait until training has had its time since the last turn, and its owner allows it. False after a long pause."""
        await trio.sleep_until(self.budget.since_s + self.budget.rest_s)
        with trio.move_on_after(PAUSED_FOR_S):
            while not self.tools.may_compute():
                await trio.sleep(LOOK_EVERY_S)
        return self.tools.may_compute()

    async def _bring(self, verdict: WorkVerdict) -> None:
        """Bring a verdict to the host, for some minutes if it is away."""
        sealed = await self.tools.signed(encode_verdict(verdict))
        with trio.move_on_after(SEND_WITHIN_S):
            while True:
                try:
                    await self.tools.send(sealed)
                except MIGHT_WORK_LATER as error:
                    log.debug("verdict_not_delivered", reason=error.one_line())
                    await trio.sleep(SEND_EVERY_S)
                    continue
                except PotluckError as error:
                    log.warning("verdict_refused", reason=error.one_line())
                    return
                self.tools.audited(verdict)
                return
        log.warning("verdict_not_delivered", reason=f"the host took none for {SEND_WITHIN_S:.0f} s")


def _progress(drawn: _Drawn, num_left: int, *, is_control: bool) -> str:
    """The state of an audit, in words."""
    num_steps = drawn.steps.num_steps
    taken = (num_steps if is_control else 0) + num_steps - num_left
    return (
        f"doing {several(num_steps, 'step')} of {peer_name(drawn.entry.peer)} again: {taken} of {2 * num_steps} taken"
    )


async def next_link(service: RoundService, known: ChainLink) -> ChainLink:
    """The head once it is another one."""
    while service.state.link.commit == known.commit:
        await service.wait_changed()
    return service.state.link


def _before(service: RoundService, link: ChainLink) -> ChainLink | None:
    """The base of a commit at the head; None where it is not here any more."""
    return next((each for each in service.chain.links[-4:] if each.commit == link.parent), None)


def _is_counted_after(service: RoundService, index: int, peer: PeerId) -> bool:
    """Whether a commit after the one of this index counts work of a peer."""
    later = takewhile(lambda link: link.index > index, reversed(service.chain.links))
    return any(link.record is not None and link.record.contributor(peer) is not None for link in later)


def _finding(work: ShownWork, redone_N: torch.Tensor, control_N: torch.Tensor) -> Finding | None:
    """The finding over the chunks that were shown."""
    sent_N = torch.cat(list(work.chunks.values())).double()
    redone_N, control_N = redone_N.double(), control_N.double()
    if not len(sent_N) == len(redone_N) == len(control_N):
        return None
    pairs = (
        (sent_N, sent_N),
        (redone_N, redone_N),
        (control_N, control_N),
        (sent_N, redone_N),
        (sent_N, control_N),
        (redone_N, control_N),
    )
    return compared(Products(*(float(a @ b) for a, b in pairs)))
