"""What this peer can say about itself at any moment: gathers from the services, decides nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.network.seams.interfaces import Clock, Network, Trainer
from averaging.release import installed_release
from averaging.rounds.fetching.download import DownloadProgress
from averaging.rounds.traffic.spans import SpanRing
from averaging.rounds.unit_service import RoundService
from averaging.storage.disk_room import DiskMeter
from peer.holdings.move_costs import DownloadRate
from peer.machine.machine import MachineMeter
from peer.membership.credential_cache import CredentialCache
from peer.owner.controls_core import TrainingAllowance
from peer.status.duties_core import is_bringer
from peer.status.health import HealthNotes, LineageDivergence, after_report
from peer.status.round_progress import EtaEstimator, round_progress
from peer.status.status import LastRound, PeerStatus, UnitPlace
from peer.status.traffic import RoundBytes, RoundTraffic, since_start, traffic_row, traffic_told
from protocol.errors import RefusedError
from protocol.host.reports import HeldoutResult
from protocol.identity.credential import credential_ends_unix_s
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage.chain import ChainLink
from protocol.rounds.lineage.lineage import TreeNode
from protocol.rounds.lineage.round_row import Counted, counted_by_peer, coverage, lost_share, round_json, round_row
from protocol.rounds.queries import idle_patience_s, is_alive, is_suspected
from protocol.rounds.state import PeerView

if TYPE_CHECKING:
    from averaging.rounds.spine_follower import SpineFollower
    from peer.holdings.held_parts import OwnParts
    from peer.membership.coordinator_client import CoordinatorClient
    from peer.pipeline.lane_service import LaneService

log = structlog.get_logger()

SHOWN_ROUNDS: Final = 256
"""How many rounds /rounds.json has: enough for a look back over days, and made in some milliseconds."""

ROOTS_REMEMBERED: Final = 256
"""Of our contributions, to know the commits that count us: each is counted within some rounds, or never."""

SILENT_S: Final = 30.0
"""A peer that was not heard for so long is shown as silent, the host's status page draws the line there, too; later where heartbeats
are so rare that silence means nothing yet.
"""


@dataclass
class StatusBoard:
    """The newest of everything. Parts that do not exist yet are None. `service` has the rounds of the spine, by which the run's
    progress is told, `others` those of the other units.
    """

    peer: PeerId
    clock: Clock
    started_unix_s: float
    run_name: str = ""
    target_total_tokens: int = 0
    state: str = "joining"
    reason: str = "starting"
    session: int = 0
    incarnation: int = 0
    roster: CredentialCache | None = None
    ways_in: tuple[str, ...] = ()
    network: Network | None = None
    host: CoordinatorClient | None = None
    experts: OwnParts | None = None
    follower: SpineFollower | None = None
    lanes: LaneService | None = None
    trainer: Trainer | None = None
    service: RoundService | None = None
    others: tuple[RoundService, ...] = ()
    spans: SpanRing = field(default_factory=SpanRing)
    machine: MachineMeter = field(default_factory=MachineMeter)
    version: str = field(default_factory=installed_release)
    is_outbound_only: bool = False
    disk: DiskMeter | None = None
    rounds_counted: int = 0
    first_counted_unix_s: float | None = None
    last_round: LastRound | None = None
    own_roots: deque[bytes] = field(default_factory=lambda: deque(maxlen=ROOTS_REMEMBERED))
    heldout: list[HeldoutResult] = field(default_factory=list)
    for_host: trio.Event = field(default_factory=trio.Event)
    """Set by a round that the host is to have from us at once: ours to bring, or of an expert that nobody else votes on."""

    committed_at_s: float = float("-inf")
    """When the newest round came, by the clock's monotonic seconds; those that were missed do not count."""

    download: DownloadProgress | None = None
    download_rate: DownloadRate = field(default_factory=DownloadRate)
    disk_bytes: int = 0
    restarted: str = ""
    caught_up: str = ""
    allowed: TrainingAllowance = field(default_factory=TrainingAllowance)
    cpu_celsius: float | None = None
    apart: LineageDivergence = field(default_factory=LineageDivergence)
    apart_told: str = ""
    pace: EtaEstimator = field(default_factory=EtaEstimator)
    traffic: RoundTraffic = field(default_factory=RoundTraffic)
    trouble: HealthNotes = field(default_factory=HealthNotes)
    has_downloaded: bool = False
    """A whole state has come in mid-run and the head has not moved to it yet."""

    shown_state: str = ""
    """What the last reader was told, since `shown_since_s` of the clock: the owner's controls change it beside `say`."""

    shown_since_s: float = 0.0

    def has_joined(self, roster: CredentialCache, ways_in: tuple[str, ...], session: int) -> None:
        """The membership of this process, and where others listened when it began."""
        self.roster, self.ways_in, self.session = roster, ways_in, session

    def has_restarted(self, sentence: str) -> None:
        """What this process found on its disk, after whatever it found before."""
        self.restarted = "; ".join(filter(None, (self.restarted, sentence)))

    def say(self, state: str, reason: str) -> None:
        """Where we are and why."""
        self.state, self.reason = state, reason
        self.download = None

    def downloading(self, progress: DownloadProgress) -> None:
        """How far the download of a state is."""
        self.download_rate.told(progress, self.clock.monotonic_s())
        is_whole = progress.bytes_here == progress.bytes_all
        self.download = None if is_whole else progress
        if is_whole:
            self.caught_up, self.has_downloaded = "snapshot", self.service is not None
        if self.service is None:
            self.reason = str(progress)

    def hears_host(self, head: CommitId, index: int) -> None:
        """Where the host stands. While a state is being downloaded or waited for we know what we lack."""
        now_s, lacks_state = self.clock.monotonic_s(), self.download is not None or self.state == "waiting"
        links = () if lacks_state else self._spine_links()
        self.apart = after_report(self.apart, links, head, index, now_s)
        was_told, self.apart_told = self.apart_told, self.apart.sentence(now_s)
        if self.apart_told and not was_told:
            log.warning("apart", reason=self.apart_told)

    def _spine_links(self) -> Sequence[ChainLink]:
        """The lineage that the host follows as this peer has it: its own unit's, or what it has of the spine's records beside that."""
        if self.service is None:
            return ()
        return self.service.chain.links if self.follower is None else self.follower.view.links

    def publish(self, event: str, fields: Mapping[str, object]) -> None:
        """What the round service told."""
        self.trouble.take(event, fields, self.clock.monotonic_s())
        if event == "contributed":
            root = fields.get("root")
            if isinstance(root, bytes):
                self.own_roots.append(root)
        if event == "downloading":
            progress = fields.get("progress")
            if isinstance(progress, DownloadProgress):
                self.downloading(progress)
        if event == "download_ended":  # also one that failed: nobody will tell of its progress again
            self.download = None
        if event == "committed":
            link = fields.get("link")
            if isinstance(link, ChainLink):
                self._committed(link)
                if self._is_behind(link):
                    self.caught_up = "replay"
                else:
                    self.pace.committed(link.total_tokens, self.clock.unix_s())
                    self.committed_at_s = self.clock.monotonic_s()
                    if is_bringer(link, self.peer):
                        self.for_host.set()
        if event == "switched":
            self.caught_up, self.has_downloaded = "snapshot" if self.has_downloaded else "replay", False
            self.pace.begin_anew()
            path = fields.get("path")
            for node in path if isinstance(path, tuple) else ():
                if isinstance(node, TreeNode):
                    self._committed(node.link)

    def publish_other_unit(self, event: str, fields: Mapping[str, object]) -> None:
        """What the rounds of a unit told that is not the spine."""
        self.trouble.take(event, fields, self.clock.monotonic_s())
        link = fields.get("link")
        if event == "committed" and isinstance(link, ChainLink) and link.record is not None:
            network = self.network
            moved = self.traffic.committed_beside(link.unit, network.traffic()) if network else RoundBytes(0, 0)
            log.info(
                "round_came_beside",
                unit=link.unit,
                index=link.index,
                members=len(link.record.contributors),
                bytes_up=moved.up,
                bytes_down=moved.down,
            )
            if link.roster == (self.peer,):
                self.for_host.set()

    def _committed(self, link: ChainLink) -> None:
        record = link.record
        if record is None:
            return
        credited = sum(c.credited_tokens for c in record.contributors)
        shares = {c.peer: c.credited_tokens / credited if credited else 0.0 for c in record.contributors}
        members = tuple(str(c.peer) for c in record.contributors)
        moved, lost = self._round_bytes(link), lost_share(record)
        self.last_round = LastRound(
            index=link.index,
            members=members,
            weights={str(p): s for p, s in shares.items()},
            coverage=coverage(record),
            lost=lost,
        ).model_copy(update=traffic_told(moved))
        log.info(
            "round_came",
            index=link.index,
            members=len(members),
            bytes_up=moved.up,
            bytes_down=moved.down,
            lost=round(lost, 6),
        )
        entry = record.contributor(self.peer)
        if entry is not None and entry.root in self.own_roots:
            self.rounds_counted += 1
            if self.first_counted_unix_s is None:
                self.first_counted_unix_s = self.clock.unix_s()

    def _round_bytes(self, link: ChainLink) -> RoundBytes:
        return self.traffic.committed(link.commit, self.network.traffic()) if self.network else RoundBytes(0, 0)

    def _is_behind(self, link: ChainLink) -> bool:
        """Whether commits on top of this one were known when it was applied."""
        if self.service is None:
            return False
        tree = self.service.state.tree
        return tree.nodes[tree.tip].link.index > link.index and tree.path(link.commit, tree.tip) is not None

    def _suspected(self, service: RoundService) -> tuple[str, ...]:
        opened = service.state.open
        if opened.proposal is None or opened.exchange is None:
            return ()
        now_s = self.clock.monotonic_s()
        return tuple(str(m.peer) for m in opened.proposal.members if is_suspected(service.state, m.peer, now_s))

    def known_peers(self) -> list[dict[str, object]]:
        """The others as the round service heard them last, and what the newest rounds count of them: a peer is told no training speed
        or loss of theirs.
        """
        if self.service is None:
            return []
        now_s, links = self.clock.monotonic_s(), self.service.chain.links[-SHOWN_ROUNDS:]
        silent_s = max(SILENT_S, idle_patience_s(self.service.state))
        counted = counted_by_peer(round_row(link) for link in links if link.record is not None)
        return [
            {
                "peer": view.peer,
                "name": peer_name(view.peer),
                "state": _seen_as(view, now_s, silent_s),
                "index": view.head.index if view.head is not None else None,
                # 0 is before any sign of life: one that is listed and that we never reached
                "last_seen_s": round(now_s - view.heard_at_s, 3) if view.heard_at_s > 0 else None,
                "tokens_per_s": None,
                "loss": None,
                "tokens_counted": counted.get(view.peer, Counted()).tokens,
                "rounds_counted": counted.get(view.peer, Counted()).rounds,
            }
            for _, view in sorted(self.service.state.peers.items())
        ]

    def latest_rounds(self) -> list[dict[str, object]]:
        """The newest rounds of the lineage that this peer follows, oldest first."""
        if self.service is None:
            return []
        links = [link for link in self.service.chain.links[-SHOWN_ROUNDS:] if link.record is not None]
        rows = [round_json(round_row(link), link.total_tokens, None) for link in links]
        return [row | traffic_row(self.traffic.of(link.commit)) for row, link in zip(rows, links, strict=True)]

    def latest_spans(self) -> list[dict[str, object]]:
        """What took how long here lately, in the order in which it ended; seconds on a clock of this process."""
        return [asdict(span) for span in self.spans.newest()]

    @property
    def of_spine(self) -> RoundService | None:
        """The rounds of the spine; None before they begin, and where this peer only follows them."""
        return self.service if self.follower is None else None

    def read(self) -> PeerStatus:
        """The status of this moment."""
        status = PeerStatus(
            peer=self.peer,
            name=peer_name(self.peer),
            run=self.run_name,
            state=self.state,
            reason=self.reason,
            restarted=self.restarted,
            session=self.session,
            caught_up=self.caught_up,
            target_total_tokens=self.target_total_tokens,
            rounds_counted=self.rounds_counted,
            first_counted_unix_s=self.first_counted_unix_s,
            last_round=self.last_round,
            started_unix_s=self.started_unix_s,
            version=self.version,
            is_outbound_only=self.is_outbound_only,
            allowed_share=self.allowed.share,
            allowed_reason=self.allowed.reason,
            cpu_celsius=self.cpu_celsius,
            apart=self.apart_told,
        )
        updates = {
            **asdict(self.machine.read()),
            **self._of_disk(),
            **self._of_trouble(),
            **self._of_membership(),
            **self._of_traffic(),
            **self._of_training(),
            **self._of_rounds(),
            **self._of_lanes(),
        }
        if self.state == "training" and not self.allowed.may_compute:
            updates |= {"state": "paused", "reason": self.allowed.reason}
        elif self.state == "training" and self.lanes is not None and self.lanes.paused:
            updates |= {"state": "waiting", "reason": self.lanes.paused}
        elif self.state == "training" and updates.get("worker_state", "training") != "training":
            # what its owner can do something about comes first
            updates["reason"] = f"the training process is {updates['worker_state']}: {updates['worker_reason']}"
        elif self.state == "training" and self.lanes is not None and self.lanes.lane is None:
            updates |= {"state": "spare", "reason": self.lanes.reason}
        updates["state_s"] = self._time_in(str(updates.get("state", self.state)))
        return status.model_copy(update=updates)

    def _time_in(self, state: str) -> float:
        now_s = self.clock.monotonic_s()
        if state != self.shown_state:
            self.shown_state, self.shown_since_s = state, now_s
        return now_s - self.shown_since_s

    def _of_disk(self) -> dict[str, object]:
        room = self.disk.room if self.disk is not None else None
        if room is None:
            return {}
        return {"disk_free_bytes": room.free_bytes, "disk_all_bytes": room.all_bytes}

    def _of_trouble(self) -> dict[str, object]:
        services = (self.service, *self.others) if self.service is not None else ()
        kept = [service.chain.tools.generations for service in services]
        return {
            "trouble": self.trouble.sentence([each.refused for each in kept], self.clock.monotonic_s()),
            "writes_refused": self.trouble.num_refused + sum(each.num_refused for each in kept),
            "generations_damaged": sum(each.num_damaged for each in kept),
        }

    def _of_membership(self) -> dict[str, object]:
        roster = self.roster
        if roster is None:
            return {}
        now_s = self.clock.unix_s()
        return {
            "credential_left_s": _left_s(roster.own_credential, now_s),
            "host_heard_ago_s": max(0.0, now_s - roster.host_heard_s),
            "is_host_away": roster.is_host_away(now_s),
            "bans": roster.num_banned,
            "ways_in": len({*self.ways_in, *roster.lasting_addresses()}),
        }

    def _of_traffic(self) -> dict[str, object]:
        told: dict[str, object] = {}
        if self.host is not None:
            to_host = self.host.traffic
            told |= {"host_bytes_up": to_host.bytes_up, "host_bytes_down": to_host.bytes_down}
        if self.network is not None:
            told |= traffic_told(since_start(self.network.traffic()))
        if self.download is not None:
            told |= {
                "download_bytes_here": self.download.bytes_here,
                "download_bytes_all": self.download.bytes_all,
                "download_donors": self.download.num_donors,
            }
        return told

    def _of_training(self) -> dict[str, object]:
        if self.trainer is None:
            return {}
        progress = self.trainer.progress()
        return {
            "tokens_per_s": progress.tokens_per_s,
            "tokens_ready": progress.tokens_ready,
            "tokens_trained": progress.tokens_trained,
            "loss": progress.loss_nats,
            "worker_state": progress.state,
            "worker_reason": progress.reason,
            "worker_restarts": progress.restarts,
        }

    def _of_lanes(self) -> dict[str, object]:
        lanes = self.lanes
        if lanes is None:
            return {}
        return {
            "lane": lanes.lane,
            "lane_reason": lanes.reason,
            "move_reason": lanes.move_reason(),
            "could_tokens_per_s": lanes.could_tokens_per_s(),
            "owed_tokens": lanes.owed_tokens(),
        }

    def _of_rounds(self) -> dict[str, object]:
        if self.service is None:
            return {}
        chain, state, now_s = self.service.chain, self.service.state, self.clock.monotonic_s()
        told: dict[str, object] = {
            "unit": self.service.unit,
            "head": chain.head.commit.hex(),
            "index": chain.head.index,
            "state_root": chain.root.hex(),
            "is_sound": all(service.chain.is_sound for service in (self.service, *self.others)),
            "state_commit": chain.rooted.hex(),
            "total_tokens": chain.head.total_tokens,
            "eta_s": self.pace.left_s(chain.head.total_tokens, self.target_total_tokens),
            **round_progress(state, now_s),
            "disk_bytes": self.disk_bytes,
            "disk_bound_bytes": sum(service.chain.disk_bound_bytes for service in (self.service, *self.others)),
            "suspected": self._suspected(self.service),
            "round_waiting": self.service.waiting,
            "units": tuple(_place(other, now_s) for other in self.others),
        }
        if self.state == "training" and self.service.reason:
            told["reason"] = self.service.reason
        return told


def _place(service: RoundService, now_s: float) -> UnitPlace:
    """Where a unit beside the spine stands."""
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
        waiting=service.waiting,
        state_root=service.chain.root.hex(),
    )


def _seen_as(view: PeerView, now_s: float, silent_s: float) -> str:
    if view.left:
        return "left"
    if view.lost:
        return "lost"
    return "silent" if now_s - view.heard_at_s > silent_s else "here"


def _left_s(credential: bytes, now_unix_s: float) -> float | None:
    """Until a credential ends; None for one that cannot be read: whoever it is shown to says so."""
    try:
        return credential_ends_unix_s(credential) - now_unix_s
    except RefusedError:
        return None
