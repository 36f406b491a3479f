"""Whether this peer audits work in a run, and its tools for that."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
import trio

from averaging.rounds.unit_service import RoundService
from peer.audits.work_auditing import AuditTools, TakesOrders, WorkAuditing
from peer.membership.credential_cache import known_standings
from peer.scores.scoring_core import TimeBudget
from peer.session.session import JoinedSession
from peer.training.peer_trainer import PeerTrainer
from protocol.host.work_rules import why_no_audits
from protocol.host.work_verdict import VERDICT_DOMAIN
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId
from protocol.run.manifest import RunConfig

log = structlog.get_logger()


async def audit_work(joined: JoinedSession, service: RoundService, trainer: PeerTrainer) -> None:
    """Audit others' work until cancelled, in a run where that is possible and asked for."""
    config, share = joined.membership.manifest.config, joined.life.config.audit_share
    if not config.admission.open or share <= 0.0:
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
