"""The peer's status, assembled from its board and its services. Read-only: nothing here changes a service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from averaging.network.seams.interfaces import Trainer
from averaging.rounds.named_peers import with_names
from averaging.rounds.unit_service import RoundService
from averaging.storage.disk_room import DiskMeter
from peer.cards.card_status import card_statuses
from peer.membership.credential_cache import CredentialCache
from peer.status.health import OFFLINE_AFTER_S, DiskSight, disagreement_sentence, offline_sentence
from peer.status.round_progress import round_progress, stands_still
from peer.status.status import LaneStatus, PeerStatus, UnitPlace
from peer.status.status_board import StatusBoard
from peer.status.traffic import since_start, traffic_fields, traffic_row
from peer.training.plan.card_report import CardReport
from protocol.errors import RefusedError
from protocol.identity.chosen_name import NONE_CHOSEN, ChosenName
from protocol.identity.credential import credential_ends_unix_s
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.round_row import (
    RECENT_ROUNDS,
    Counted,
    RoundRow,
    counted_by_peer,
    left_out_by_peer,
    round_json,
    round_row,
)
from protocol.rounds.queries import idle_patience_s, is_alive, is_suspected, standing_of
from protocol.rounds.state import PeerView

if TYPE_CHECKING:
    from averaging.rounds.spine_follower import SpineFollower
    from peer.holdings.held_parts import OwnParts
    from peer.membership.coordinator_client import CoordinatorClient


SHOWN_ROUNDS: Final = 256
"""Number of rounds in /rounds.json. Covers days and is quick to build."""

SILENT_S: Final = 30.0
"""A peer not heard from for this long is shown as silent, as on the host's status page. The limit is higher if heartbeats are so
rare that silence means nothing yet.
"""


@dataclass
class Sources:
    """The board and the services that a status is read from; None for a service that does not run yet.

    Attributes:
        ways_in: addresses of other peers that were known when this process started.
        service: the rounds that show the run's progress: those of the spine, or of our unit if every unit has the spine's rounds.
        others: the rounds of the other units held here.
        follower: the records of the spine, if this peer does not hold it.
        chosen: what the owner calls this peer.
    """

    board: StatusBoard
    disk: DiskMeter | None = None
    host: CoordinatorClient | None = None
    roster: CredentialCache | None = None
    ways_in: tuple[str, ...] = ()
    experts: OwnParts | None = None
    trainer: Trainer | None = None
    service: RoundService | None = None
    others: tuple[RoundService, ...] = ()
    follower: SpineFollower | None = None
    lanes: Callable[[], LaneStatus] | None = None
    chosen: ChosenName = NONE_CHOSEN

    def has_joined(self, roster: CredentialCache, ways_in: tuple[str, ...], session: int) -> None:
        """Set this process's membership, and the addresses of other peers at its start."""
        self.roster, self.ways_in, self.board.session = roster, ways_in, session
        roster.own_chosen = self.chosen

    def begin_rounds(
        self,
        trainer: Trainer,
        service: RoundService,
        others: Sequence[RoundService] = (),
        follower: SpineFollower | None = None,
    ) -> None:
        """Set the rounds that run from now on."""
        self.trainer, self.service, self.others, self.follower = trainer, service, tuple(others), follower
        self.board.known_commits = lambda: service.state.tree

    @property
    def of_spine(self) -> RoundService | None:
        """The rounds of the spine; None before they begin, and if this peer only follows them."""
        return self.service if self.follower is None else None

    @property
    def spine_links(self) -> Sequence[ChainLink]:
        """The lineage that the host follows, as known here: from our own unit, or from the spine's records if this peer follows
        them.
        """
        if self.service is None:
            return ()
        return self.service.chain.links if self.follower is None else self.follower.view.links


def status_of(sources: Sources) -> PeerStatus:
    """The current status."""
    board = sources.board
    status = PeerStatus(
        peer=board.peer,
        name=peer_name(board.peer),
        nickname=sources.chosen.nickname,
        team=sources.chosen.team,
        run=board.run_name,
        state=board.state,
        reason=board.reason,
        restarted=board.restarted,
        session=board.session,
        caught_up=board.rounds.caught_up,
        target_total_tokens=board.target_total_tokens,
        rounds_counted=board.rounds.counted,
        tokens_counted=board.rounds.tokens_counted,
        run_rounds_counted=board.rounds.given.rounds,
        run_tokens_counted=board.rounds.given.tokens,
        audits=board.rounds.given.audits,
        last_audit=board.rounds.given.last_audit,
        audit_now=board.rounds.given.audit_now,
        untellable=board.rounds.given.untellable,
        first_counted_unix_s=board.rounds.first_counted_unix_s,
        last_round=board.rounds.last,
        started_unix_s=board.started_unix_s,
        version=board.version,
        is_outbound_only=board.is_outbound_only,
        standing=standing_of(sources.service.state, board.peer).word if sources.service is not None else "",
        allowed_share=board.allowed.share,
        allowed_reason=board.allowed.reason,
        cpu_celsius=board.cpu_celsius,
        grid_g_per_kwh=board.g_per_kwh,
        is_unheard=board.isolation.is_apart,
        apart="; ".join(filter(None, (board.isolation_text, board.divergence_text))),
    )
    lanes = sources.lanes() if sources.lanes is not None else None
    updates = {
        **asdict(board.machine.read()),
        **_of_disk(sources),
        **_of_trouble(sources),
        **_of_membership(sources),
        **_of_traffic(sources),
        **_of_training(sources),
        **_of_rounds(sources),
        "offline": _offline(sources),
        **(asdict(lanes) if lanes is not None else {}),
    }
    updates.pop("paused", None)
    updates |= _shown_state(board, updates, lanes)
    updates["state_s"] = board.time_in(str(updates.get("state", board.state)))
    return status.model_copy(update=updates)


def _shown_state(board: StatusBoard, updates: dict[str, object], lanes: LaneStatus | None) -> dict[str, object]:
    """The state to show for a training peer that something holds back. Causes that the owner can fix come first."""
    if board.state != "training":
        return {}
    if not board.allowed.may_compute:
        return {"state": "paused", "reason": board.allowed.reason}
    if updates.get("offline"):
        return {"reason": updates["offline"]}
    if lanes is not None and lanes.paused:
        return {"state": "waiting", "reason": lanes.paused}
    if updates.get("worker_state", "training") != "training":
        return {"reason": f"the training process is {updates['worker_state']}: {updates['worker_reason']}"}
    if lanes is not None and lanes.lane is None:
        return {"state": "spare", "reason": lanes.lane_reason}
    return {}


def _offline(sources: Sources) -> str:
    """That nobody answers, in one sentence; empty while the host or a peer does, and before and after the rounds of the run."""
    service, roster = sources.service, sources.roster
    if service is None or roster is None or sources.board.state == "finished":
        return ""
    now_s = sources.board.clock.monotonic_s()
    here = [view for view in service.state.peers.values() if not view.left]
    peers_s = [now_s - view.heard_at_s for view in here if view.heard_at_s > 0]
    host_s = max(0.0, sources.board.clock.unix_s() - roster.host_heard_s)
    return offline_sentence([host_s, *peers_s], max(OFFLINE_AFTER_S, idle_patience_s(service.state)))


def known_peers(sources: Sources) -> list[dict[str, object]]:
    """This peer, then the others as last heard by the round service, with their counts in the newest rounds, then those that only
    these rounds name. Training speed and loss of others are not known here.
    """
    service = sources.service
    if service is None:
        return []
    now_s, rounds = sources.board.clock.monotonic_s(), _rows(service, SHOWN_ROUNDS)
    silent_s = max(SILENT_S, idle_patience_s(service.state))
    counted, left_out = counted_by_peer(rounds), left_out_by_peer(rounds)
    others = [
        {
            **_row_of(view.peer, counted.get(view.peer, Counted())),
            "state": _seen_as(view, now_s, silent_s),
            "index": view.head.index if view.head is not None else None,
            # 0 means no sign of life: the peer is listed but was never reached.
            "last_seen_s": round(now_s - view.heard_at_s, 3) if view.heard_at_s > 0 else None,
        }
        for _, view in sorted(service.state.peers.items())
    ]
    away = sorted(counted.keys() - service.state.peers.keys() - {sources.board.peer})
    rows = [_own_row(sources, service, counted.get(sources.board.peer, Counted())), *others]
    rows += [_row_of(peer, counted[peer]) for peer in away]
    by_peer = ((row, PeerId(str(row["peer"]))) for row in rows)
    return [
        {
            **row,
            "left_out": left_out.get(peer, 0.0),
            "standing": standing_of(service.state, peer).word,
            **_known_of(sources.roster, peer),
        }
        for row, peer in by_peer
    ]


def _known_of(roster: CredentialCache | None, peer: PeerId) -> dict[str, object]:
    """The roster's knowledge of another peer: a ban, and the name that it chose. Our own name is in our row already."""
    if roster is None:
        return {"is_banned": False}
    chosen = roster.chosen.get(peer, NONE_CHOSEN)
    names = {"nickname": chosen.nickname, "team": chosen.team} if chosen else {}
    return {"is_banned": roster.is_banned(peer), **names}


def _row_of(peer: PeerId, counted: Counted) -> dict[str, object]:
    """The row of another peer, one that is away."""
    return {
        "peer": peer,
        "name": peer_name(peer),
        "state": "away",
        "index": None,
        "last_seen_s": None,
        "tokens_per_s": None,
        "loss": None,
        "tokens_counted": counted.tokens,
        "rounds_counted": counted.rounds,
    }


def _own_row(sources: Sources, service: RoundService, counted: Counted) -> dict[str, object]:
    board, training = sources.board, _of_training(sources)
    return {
        "peer": board.peer,
        "name": peer_name(board.peer),
        "nickname": sources.chosen.nickname,
        "team": sources.chosen.team,
        "state": _shown_state(board, training, None).get("state", board.state),
        "index": service.state.link.index,
        "last_seen_s": 0.0,
        "tokens_per_s": training.get("tokens_per_s"),
        "loss": training.get("loss"),
        "tokens_counted": counted.tokens,
        "rounds_counted": counted.rounds,
    }


def latest_rounds(sources: Sources) -> list[dict[str, object]]:
    """The newest rounds of the lineage that this peer follows, oldest first."""
    if sources.service is None:
        return []
    links = [link for link in sources.service.chain.links[-SHOWN_ROUNDS:] if link.record is not None]
    rows = [round_json(round_row(link), link.total_tokens, None) for link in links]
    traffic = sources.board.rounds.traffic
    return [row | traffic_row(traffic.of(link.commit)) for row, link in zip(rows, links, strict=True)]


def _of_disk(sources: Sources) -> dict[str, object]:
    room = sources.disk.room if sources.disk is not None else None
    if room is None:
        return {}
    return {"disk_free_bytes": room.free_bytes, "disk_all_bytes": room.all_bytes}


def _free_bytes(sources: Sources) -> int | None:
    room = sources.disk.room if sources.disk is not None else None
    return None if room is None else room.free_bytes


def _of_trouble(sources: Sources) -> dict[str, object]:
    board = sources.board
    services = (sources.service, *sources.others) if sources.service is not None else ()
    kept = [service.chain.tools.generations for service in services]
    left_bytes = sum(service.chain.disk_bound_bytes for service in services) - board.disk_bytes
    disk = DiskSight(sources.disk.folder if sources.disk is not None else Path(), left_bytes, _free_bytes(sources))
    health = board.health.sentence([each.refused for each in kept], board.clock.monotonic_s(), disk)
    return {
        "trouble": "; ".join(filter(None, (health, _disagreement(sources), board.convicted.sentence))),
        "chunks_audited": board.convicted.num_audited,
        "audited_bytes": board.convicted.audited_bytes,
        "chunks_not_shown": board.convicted.num_not_shown,
        "writes_refused": board.health.num_refused + sum(each.num_refused for each in kept),
        "generations_damaged": sum(each.num_damaged for each in kept),
    }


def _disagreement(sources: Sources) -> str:
    """Whether too much of this peer's newest work disagrees with the others', as a sentence for its owner."""
    if sources.service is None:
        return ""
    rows = _rows(sources.service, RECENT_ROUNDS)
    num_rounds = sum(sources.board.peer in row.members for row in rows)
    return disagreement_sentence(left_out_by_peer(rows).get(sources.board.peer, 0.0), num_rounds)


def _rows(service: RoundService, num_rounds: int) -> list[RoundRow]:
    """The newest rounds of the lineage that a unit follows, oldest first."""
    return [round_row(link) for link in service.chain.links[-num_rounds:] if link.record is not None]


def _of_membership(sources: Sources) -> dict[str, object]:
    roster = sources.roster
    if roster is None:
        return {}
    now_s = sources.board.clock.unix_s()
    return {
        "credential_left_s": _left_s(roster.own_credential, now_s),
        "host_heard_ago_s": max(0.0, now_s - roster.host_heard_s),
        "is_host_away": roster.is_host_away(now_s),
        "bans": roster.num_banned,
        "ways_in": len({*sources.ways_in, *roster.lasting_addresses()}),
    }


def _of_traffic(sources: Sources) -> dict[str, object]:
    board, fields = sources.board, dict[str, object]()
    if sources.host is not None:
        to_host = sources.host.traffic
        fields |= {"host_bytes_up": to_host.bytes_up, "host_bytes_down": to_host.bytes_down}
    if board.network is not None:
        fields |= traffic_fields(since_start(board.network.traffic()))
    if board.download is not None:
        fields |= {
            "download_what": board.download.what,
            "download_left_s": board.download.left_s(board.download_rate.bytes_per_s),
            "download_bytes_here": board.download.bytes_here,
            "download_bytes_all": board.download.bytes_all,
            "download_donors": board.download.num_donors,
        }
    return fields


def _of_training(sources: Sources) -> dict[str, object]:
    if sources.trainer is None:
        return {}
    progress, card = sources.trainer.progress(), sources.board.card_report()
    return {
        **(_of_card(card, progress.tokens_per_s) if card is not None else {}),
        **_of_cards(sources.board),
        "tokens_per_s": progress.tokens_per_s,
        "tokens_ready": progress.tokens_ready,
        "tokens_trained": progress.tokens_trained,
        "loss": progress.loss_nats,
        "worker_state": progress.state,
        "worker_reason": progress.reason,
        "worker_restarts": progress.restarts,
    }


def _of_cards(board: StatusBoard) -> dict[str, object]:
    """Several cards, and how they train together."""
    choice = board.layout
    if choice is None or not (choice.cards or choice.left_out):
        return {}
    uses = {card.uuid: use for card, use in board.machine.cards()}
    return {"layout": choice.layout.reason, "cards": card_statuses(choice, board.cards(), uses)}


def _of_card(card: CardReport, tokens_per_s: float) -> dict[str, object]:
    return {
        "card_plan": card.reason,
        "card_expected_bytes": card.expected_bytes,
        "card_used_bytes": card.used_bytes or None,
        "mfu": card.mfu(tokens_per_s),
        "compile_note": card.compile_note,
        "skipped_steps": card.skipped_steps,
        "source_tokens": card.source_tokens if len(card.source_tokens) > 1 else (),
    }


def _of_rounds(sources: Sources) -> dict[str, object]:
    board, service = sources.board, sources.service
    if service is None:
        return {}
    chain, state, now_s = service.chain, service.state, board.clock.monotonic_s()
    chains = [each.chain for each in (service, *sources.others)]
    fields: dict[str, object] = {
        "unit": service.unit,
        "head": chain.head.commit.hex(),
        "index": chain.head.index,
        "state_root": chain.root.hex(),
        "is_sound": all(each.is_sound for each in chains),
        "state_commit": chain.rooted.hex(),
        "total_tokens": chain.head.total_tokens,
        "eta_s": None
        if stands_still(state, now_s)
        else board.rounds.eta.left_s(chain.head.total_tokens, board.target_total_tokens),
        **round_progress(state, now_s),
        "disk_bytes": board.disk_bytes,
        "disk_bound_bytes": sum(chain.disk_bound_bytes for chain in chains),
        "disk_files_bound_bytes": sum(chain.disk_bound_bytes - chain.tools.log.bound_bytes for chain in chains),
        "suspected": _suspected(service, now_s),
        "round_waiting": with_names(service.waiting, service.state),
        "units": tuple(_place(other, now_s) for other in sources.others),
    }
    if board.state == "training" and service.reason:
        fields["reason"] = with_names(service.reason, service.state)
    return fields


def _suspected(service: RoundService, now_s: float) -> tuple[str, ...]:
    opened = service.state.open
    if opened.proposal is None or opened.exchange is None:
        return ()
    return tuple(str(m.peer) for m in opened.proposal.members if is_suspected(service.state, m.peer, now_s))


def _place(service: RoundService, now_s: float) -> UnitPlace:
    """The status of a unit other than the spine."""
    state = service.state
    patience_s = max(SILENT_S, idle_patience_s(state))
    holders = [
        view.peer for view in state.peers.values() if view.head and is_alive(state, view.peer, now_s, patience_s)
    ]
    return UnitPlace(
        unit=service.unit,
        index=service.chain.head.index,
        holders=1 + len(holders),
        tokens_ready=state.tokens_ready,
        waiting=with_names(service.waiting, service.state),
        state_root=service.chain.root.hex(),
    )


def _seen_as(view: PeerView, now_s: float, silent_s: float) -> str:
    if view.left:
        return "left"
    if view.lost:
        return "lost"
    return "silent" if now_s - view.heard_at_s > silent_s else "here"


def _left_s(credential: bytes, now_unix_s: float) -> float | None:
    """Seconds until a credential ends; None if it cannot be read. The peers that check it report that error."""
    try:
        return credential_ends_unix_s(credential) - now_unix_s
    except RefusedError:
        return None
