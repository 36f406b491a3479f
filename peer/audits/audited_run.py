"""Whether this peer audits work in a run, and its tools for that. A peer whose own work nobody can audit is told so."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
import trio

from averaging.rounds.unit_service import RoundService
from peer.audits.work_auditing import AuditTools, TakesOrders, WorkAuditing, next_link
from peer.membership.credential_cache import known_standings
from peer.scores.scoring_core import TimeBudget
from peer.session.session import JoinedSession
from peer.status.status_board import GivenToRun
from peer.training.peer_trainer import PeerTrainer
from protocol.host.work_rules import BY_INVITE, why_no_audits, why_untellable
from protocol.host.work_verdict import VERDICT_DOMAIN
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId
from protocol.rounds.queries import standing_of
from protocol.run.manifest import RunConfig

log = structlog.get_logger()


async def audit_work(joined: JoinedSession, service: RoundService, trainer: PeerTrainer) -> None:
    """Audit others' work, and watch whether others can audit ours, until cancelled, in a run where that is possible."""
    config = joined.membership.manifest.config
    if not config.admission.open:
        return
    async with trio.open_nursery() as nursery:
        if not why_no_audits(config):
            nursery.start_soon(watch_own_work, service, joined.life.board.peer, joined.life.board.rounds.given)
        await _audit_others(joined, service, trainer)


async def watch_own_work(service: RoundService, me: PeerId, given: GivenToRun) -> None:
    """Note after each round whether auditors can do our work again, until cancelled. A peer that came by the open door and whose work
    they cannot do stays a stranger for ever; it hears that once in its log, and in its status.
    """
    while True:
        newest, before = service.chain.offered.newest, given.untellable
        given.untellable = why_untellable(newest.num_steps) if newest is not None and newest.tokens else ""
        if given.untellable and not before and standing_of(service.state, me) is PeerStanding.STRANGER:
            log.warning("no_member_by_work", reason=given.untellable, remedy=BY_INVITE)
        await next_link(service, service.state.link)


async def _audit_others(joined: JoinedSession, service: RoundService, trainer: PeerTrainer) -> None:
    config, share = joined.membership.manifest.config, joined.life.config.audit_share
    if share <= 0.0:
        return
    if reason := why_not_here(config, trains_alone=isinstance(trainer, TakesOrders)):
        log.info("no_audits", reason=reason)
        return
    if isinstance(trainer, TakesOrders):
        await WorkAuditing(_tools(joined, share, trainer), TimeBudget(trio.current_time())).run(service)


def why_not_here(config: RunConfig, *, trains_alone: bool) -> str:
    """Why this peer does nobody's work again in a run; empty where it may.

    Args:
        trains_alone: one process of this peer holds the whole model and trains it.
    """
    return why_no_audits(config) or ("" if trains_alone else "this peer's replica is shared by several processes")


def _tools(joined: JoinedSession, share: float, trainer: TakesOrders) -> AuditTools:
    life, membership = joined.life, joined.membership
    controls, authority = life.controls, life.invite.ca_certificate_der

    def standings() -> Mapping[PeerId, PeerStanding]:
        return known_standings(joined.roster, life.member.peer, authority)

    async def signed(payload: bytes) -> bytes:
        return seal(life.identity, VERDICT_DOMAIN, membership.run_id, life.sequence.take(), NEVER_MS, payload)

    def doing(words: str) -> None:
        life.board.rounds.given.audit_now = words

    return AuditTools(
        me=life.identity.peer_id,
        share=share,
        batch_tokens=membership.manifest.config.inner.batch_tokens,
        order=trainer.order,
        standings=standings,
        may_compute=lambda: life.board.allowed.may_compute,
        slowdown=lambda: life.config.slowdown / max(0.01, controls.decision.share),
        signed=signed,
        send=joined.client.send_verdict,
        audited=life.board.rounds.given.audited,
        doing=doing,
    )
