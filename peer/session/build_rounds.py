"""Builds the daemon's rounds: the part that is common to training alone and in lanes."""

from __future__ import annotations

from typing import Final

from averaging.network.seams.interfaces import Trainer
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.head_vector import HeadVector
from averaging.rounds.lineage.round_context import AuditContext, HostWord, RoundContext
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.peer_rounds import PeerContext, PeerRounds
from averaging.rounds.spine_follower import SpineFollower
from averaging.rounds.unit_service import RoundService
from averaging.state.proof_files import ProofFiles
from averaging.storage.file_storage import FileStorage
from peer.membership.credential_cache import known_standings
from peer.session.build import round_config, unit_shapes
from peer.session.leaving import LINGER_S, linger
from peer.session.session import JoinedSession
from peer.status.round_progress import all_have
from peer.status.status_text import run_is_over, staying
from peer.training.mode_rules import mixing_of
from protocol.rounds.state import OpenRound

GOODBYE_WITHIN_S: Final = 3.0


def unit_service(
    joined: JoinedSession, chain: UnitChain, open_round: OpenRound, trainer: Trainer, rounds: PeerRounds
) -> RoundService:
    """The rounds of one unit held here."""
    life, unit, is_reachable = joined.life, chain.tools.unit, not joined.is_outbound_only
    config = round_config(joined.membership, life.member, joined.verifier, unit, is_inbound_reachable=is_reachable)
    is_first = config.is_spine or config.is_in_step  # if every unit has the spine's rounds, ours reports for it
    publish = life.board.publish if is_first else life.board.publish_other_unit
    mixing = mixing_of(joined.membership.manifest.config)
    tools = RoundContext(
        joined.network,
        life.clock,
        ThreadOffload(),
        trainer,
        life.sealed,
        publish,
        mixing,
        life.board.spans.record,
        credential=lambda: joined.roster.own_credential,
        host_word=HostWord(
            lambda: known_standings(joined.roster, life.member.peer, life.invite.ca_certificate_der),
            lambda: joined.reporter.gate.hold if joined.reporter.gate is not None else None,
        ),
        steps_in_place=joined.membership.manifest.config.pipeline is None,  # lanes keep anchors of earlier commits
        audits=AuditContext(proofs=ProofFiles(FileStorage(life.folder / unit, ThreadOffload()))),
    )
    return RoundService(config, chain, open_round, tools, rounds)


def peer_rounds(joined: JoinedSession, follower: SpineFollower | None = None) -> PeerRounds:
    """The container of this peer's rounds, still without units. `follower` follows the spine if it is not held."""
    life, roster, run_id = joined.life, joined.roster, joined.membership.run_id
    tools = PeerContext(joined.network, life.clock, life.sealed, roster.is_member, life.board.publish, roster.is_banned)
    rounds = PeerRounds(run_id, joined.verifier, tools, HeadVector(FileStorage(life.folder, ThreadOffload())), follower)
    if not joined.is_outbound_only:
        shapes = unit_shapes(joined.membership)
        rounds.lend(life.member, ThreadOffload(), shapes, lambda: joined.roster.own_credential)
    return rounds


async def finish(joined: JoinedSession, service: RoundService) -> None:
    """Stay after the run's end until every live peer has the last commit and the host has its checkpoint. The reason tells the owner
    who is waited for.
    """
    board, reporter = joined.life.board, joined.reporter
    is_host_here, num_returns = True, 0

    def say() -> None:
        board.say("finished", staying(is_host_here=is_host_here, has_host_all=has_host_all(), most_s=LINGER_S))

    def has_host_all() -> bool:
        return reporter.last_reply is not None and reporter.last_reply.is_final_checkpoint_written

    async def does_everybody_have_all() -> bool:
        nonlocal is_host_here, num_returns
        was_here, is_host_here = is_host_here, await reporter.report_once()
        num_returns += is_host_here and not was_here
        have_all = has_host_all() and all_have(service.state, service.chain.head.index)
        if not have_all:
            say()
        return have_all

    say()
    # A host that comes back needs time to fetch the last state from us.
    await linger(does_everybody_have_all, lambda: (joined.network.traffic().bulk_bytes_up, num_returns))
    board.say("finished", run_is_over(_model_command(joined), has_host_all=has_host_all()))


def _model_command(joined: JoinedSession) -> str:
    """The command that gives the owner the run's model: from this disk if all of it is here."""
    manifest = joined.membership.manifest
    if manifest.num_parts:
        return "potluck checkpoint fetch"
    form = " --merged" if manifest.config.adapter is not None else ""  # such a model has two forms
    return f"potluck checkpoint export latest OUT_DIR{form}"
