"""The status board that a peer's services write to. The board holds no service; peer/status/status_of.py reads both."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Clock, Network, TrafficCount
from averaging.release import installed_release
from averaging.rounds.lineage.round_reports import (
    Contributed,
    DownloadEnded,
    Downloading,
    DownloadProgress,
    LineageSwitched,
    RoundCommitted,
    RoundReport,
)
from averaging.rounds.traffic.spans import SpanRing
from peer.cards.own_cards import OwnCards
from peer.holdings.move_costs import DownloadRate
from peer.machine.machine import MachineMeter
from peer.owner.controls_core import TrainingAllowance
from peer.status.convicted_voters import ConvictedVoters
from peer.status.duties_core import is_bringer
from peer.status.health import HealthNotes, Isolation, LineageDivergence, after_report
from peer.status.round_progress import EtaEstimator
from peer.status.status import LastRound
from peer.status.traffic import RoundBytes, RoundTraffic, traffic_fields
from peer.training.plan.card_report import CardReport
from peer.training.plan.card_state import CardState
from peer.training.plan.layout_core import LayoutChoice
from protocol.grids import grid_g_per_kwh
from protocol.host.reports import HeldoutResult
from protocol.host.work_rules import LEAST_LENGTH, PASS_SHARE, fit_of
from protocol.host.work_verdict import PERMILLE, PPM, WorkVerdict
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import CommitTree, goes_on
from protocol.rounds.lineage.round_row import coverage, disagreed_in, lost_share
from protocol.tables import duration

log = structlog.get_logger()

ROOTS_REMEMBERED: Final = 256
"""Number of our contributions remembered, to recognise the commits that count them. A contribution is counted within some rounds or
never.
"""


def _no_report() -> CardReport | None:
    return None


def _no_cards() -> tuple[CardState, ...]:
    return ()


def _no_commits() -> CommitTree | None:
    return None


@dataclass(frozen=True, slots=True)
class SeenRound:
    """A committed round, as this peer saw it. `own_tokens` are its credited tokens in it."""

    unix_s: float
    index: int
    total_tokens: int
    num_members: int
    own_tokens: int
    loss_nats: float | None = None


@dataclass
class GivenToRun:
    """This peer's part in the run over all its starts, as far as it saw the rounds: `rounds` that counted it, with `tokens`.
    `fresh` rounds are not in the history on disk yet. This process did `audits` of others' work; `last_audit` tells the newest, and
    `audit_now` the one under way. `untellable` is why nobody can do this peer's own work again; empty where they can.
    """

    fresh: list[SeenRound] = field(default_factory=list)
    seen: list[tuple[int, int]] = field(default_factory=list)
    rounds: int = 0
    tokens: int = 0
    audits: int = 0
    last_audit: str = ""
    audit_now: str = ""
    untellable: str = ""

    def audited(self, verdict: WorkVerdict) -> None:
        """The host took our verdict on a contributor's work."""
        length = verdict.length_permille / PERMILLE
        found = (
            f"its work fits its own text by {fit_of(verdict.gap_ppm / PPM, length):.0%} (other text gives about 0%; the host asks for"
            f" {PASS_SHARE:.0%} of what is usual), and has {length:.0%} of the length (it asks for {LEAST_LENGTH:.0%})"
        )
        if verdict.is_untold:
            found = "it told no steps that could be done again"
        self.audits, self.last_audit = self.audits + 1, f"{peer_name(verdict.contributor)}: {found}"

    def saw(self, index: int, own_tokens: int) -> None:
        """A committed round. It replaces itself and later ones, which were of another lineage."""
        while self.seen and self.seen[-1][0] >= index:
            _, lost = self.seen.pop()
            self.rounds, self.tokens = self.rounds - int(lost > 0), self.tokens - lost
        self.seen.append((index, own_tokens))
        self.rounds, self.tokens = self.rounds + int(own_tokens > 0), self.tokens + own_tokens

    def begin_with(self, earlier: Iterable[tuple[int, int]]) -> None:
        """Put the rounds of earlier starts, each with its own tokens, before those of this one."""
        now, self.seen, self.rounds, self.tokens = self.seen, [], 0, 0
        for index, own_tokens in (*earlier, *now):
            self.saw(index, own_tokens)


@dataclass
class RoundTally:
    """Totals over the reports of this peer's rounds.

    Attributes:
        own_roots: roots of the newest contributions of this process.
        counted: number of committed rounds that count one of them, with `tokens_counted` tokens; the first at `first_counted_unix_s`.
        last: the newest committed round.
        came_at_s: when it came, in monotonic seconds; missed rounds do not count.
        caught_up: how missed rounds were last fetched, "snapshot" or "replay"; empty if none were missed.
        has_downloaded: a whole state came in mid-run, and the head has not moved to it yet.
        eta: the rate of rounds.
        traffic: payload of each round.
        given: this peer's part in the whole run.
    """

    peer: PeerId
    own_roots: deque[bytes] = field(default_factory=lambda: deque(maxlen=ROOTS_REMEMBERED))
    counted: int = 0
    tokens_counted: int = 0
    first_counted_unix_s: float | None = None
    last: LastRound | None = None
    came_at_s: float = float("-inf")
    caught_up: str = ""
    has_downloaded: bool = False
    eta: EtaEstimator = field(default_factory=EtaEstimator)
    traffic: RoundTraffic = field(default_factory=RoundTraffic)
    given: GivenToRun = field(default_factory=GivenToRun)

    def committed(self, link: ChainLink, traffic: TrafficCount | None, unix_s: float) -> None:
        """A round was applied here. `traffic`: payload of this process so far, None before there is a network."""
        record = link.record
        if record is None or record.rewind:
            return
        credited = sum(c.credited_tokens for c in record.contributors)
        shares = {c.peer: c.credited_tokens / credited if credited else 0.0 for c in record.contributors}
        members = tuple(str(c.peer) for c in record.contributors)
        moved = self.traffic.committed(link.commit, traffic) if traffic is not None else RoundBytes(0, 0)
        lost = lost_share(record)
        self.last = LastRound(
            index=link.index,
            members=members,
            weights={str(p): s for p, s in shares.items()},
            coverage=coverage(record),
            lost=lost,
            left_out=sum(each.share for each in disagreed_in(record) if each.peer == self.peer),
        ).model_copy(update=traffic_fields(moved))
        log.info(
            "round_came",
            index=link.index,
            members=len(members),
            bytes_up=moved.up,
            bytes_down=moved.down,
            lost=round(lost, 6),
        )
        entry = record.contributor(self.peer)
        own_tokens = 0 if entry is None else entry.credited_tokens
        self.given.fresh.append(SeenRound(unix_s, link.index, link.total_tokens, len(members), own_tokens))
        self.given.saw(link.index, own_tokens)
        if entry is not None and entry.root in self.own_roots:
            self.counted += 1
            self.tokens_counted += entry.credited_tokens
            if self.first_counted_unix_s is None:
                self.first_counted_unix_s = unix_s

    def switched(self) -> None:
        """The head moved to another lineage."""
        self.caught_up, self.has_downloaded = "snapshot" if self.has_downloaded else "replay", False
        self.eta.begin_anew()


@dataclass
class StatusBoard:
    """The peer's state with its reason, and the notes of its services. Each service writes its own part; the board reads from no
    service.

    `known_commits` returns the commits that the rounds know, None before they run. `for_host` is set by a round that we must send
    to the host at once: one that we have to upload, or one of an expert that no other peer votes on. So does a convicted voter.
    `card_report` tells how the card trains, None before the training process has told it. `own_cards` are those that this peer took of
    its machine, `layout` tells how they train together, None before it is chosen, and `cards` tells each one.
    `g_per_kwh` are grams of CO2 of a kilowatt-hour, the owner's or else the run's; None if nobody gives them.
    """

    peer: PeerId
    clock: Clock
    started_unix_s: float
    state: str = "joining"
    reason: str = "starting"
    restarted: str = ""
    run_name: str = ""
    target_total_tokens: int = 0
    session: int = 0
    incarnation: int = 0
    is_outbound_only: bool = False
    version: str = field(default_factory=installed_release)
    network: Network | None = None
    known_commits: Callable[[], CommitTree | None] = _no_commits
    download: DownloadProgress | None = None
    download_rate: DownloadRate = field(default_factory=DownloadRate)
    disk_bytes: int = 0
    allowed: TrainingAllowance = field(default_factory=TrainingAllowance)
    cpu_celsius: float | None = None
    machine: MachineMeter = field(default_factory=MachineMeter)
    card_report: Callable[[], CardReport | None] = _no_report
    spans: SpanRing = field(default_factory=SpanRing)
    health: HealthNotes = field(default_factory=HealthNotes)
    divergence: LineageDivergence = field(default_factory=LineageDivergence)
    divergence_text: str = ""
    heldout: list[HeldoutResult] = field(default_factory=list)
    for_host: trio.Event = field(default_factory=trio.Event)
    shown: tuple[str, float] = ("", 0.0)

    def __post_init__(self) -> None:
        self.rounds = RoundTally(self.peer)
        self.convicted = ConvictedVoters(self.peer)
        self.isolation, self.isolation_text = Isolation(), ""
        self.own_cards = OwnCards()
        self.cards: Callable[[], tuple[CardState, ...]] = _no_cards
        self.layout: LayoutChoice | None = None
        self.g_per_kwh: float | None = None

    def has_restarted(self, sentence: str) -> None:
        """Append a sentence about the state that this process found on its disk."""
        self.restarted = "; ".join(filter(None, (self.restarted, sentence)))

    def takes_part_in(self, run_name: str, total_tokens: int, *, is_outbound_only: bool, grid: str = "") -> None:
        """Set the run that admitted us, its target in tokens, and its grid, which counts where the owner gives none."""
        self.run_name, self.target_total_tokens, self.is_outbound_only = run_name, total_tokens, is_outbound_only
        if grid and self.g_per_kwh is None:
            self.g_per_kwh = grid_g_per_kwh(grid)

    def say(self, state: str, reason: str) -> None:
        """Set the state and its reason. Clears the progress of a download."""
        self.state, self.reason = state, reason
        self.download = None

    def downloading(self, progress: DownloadProgress) -> None:
        """Set the progress of a state's download."""
        self.download_rate.update(progress, self.clock.monotonic_s())
        has_rounds = self.known_commits() is not None
        is_whole = progress.bytes_here == progress.bytes_all
        self.download = None if is_whole else progress
        if is_whole:
            self.rounds.caught_up, self.rounds.has_downloaded = "snapshot", has_rounds
        if not has_rounds:
            self.reason = self._download_text(progress)

    def lacks_donor(self, reason: str) -> None:
        """Add the latest donor's failure to the sentence about the search for the run's newest state."""
        self.say("catching up", f"looking for the run's newest state; {reason}")

    def waits_for_download(self) -> bool:
        """Whether a state is being downloaded. If so, sets this as the reason why the peer does not train."""
        if self.download is not None:
            self.state, self.reason = "catching up", self._download_text(self.download)
        return self.download is not None

    def _download_text(self, progress: DownloadProgress) -> str:
        left_s = progress.left_s(self.download_rate.bytes_per_s)
        return str(progress) if left_s is None else f"{progress}, {duration(left_s)} to go"

    def hears_host(self, links: Sequence[ChainLink], head: CommitId, index: int) -> None:
        """Note the host's head. `links`: the lineage that the host follows, as known here, or empty before there is one.

        Ignored while a state is downloaded or awaited: this peer then already knows that it is behind.
        """
        now_s, lacks_state = self.clock.monotonic_s(), self.download is not None or self.state == "waiting"
        self.divergence = after_report(self.divergence, () if lacks_state else links, head, index, now_s)
        before, self.divergence_text = self.divergence_text, self.divergence.sentence(now_s)
        if self.divergence_text and not before:
            log.warning("apart", reason=self.divergence_text)

    def note_isolation(self, found: Isolation) -> None:
        """Note whether others are at work that this peer does not hear; the owner is told once."""
        before, self.isolation = self.isolation, found
        now_s = self.clock.monotonic_s()
        if found.sentence(now_s) and not self.isolation_text:
            log.warning("unheard", reason=found.sentence(now_s))
        if before.is_apart and not found.is_apart and self.isolation_text:
            log.info("heard_again", reason="other peers are heard again")
        self.isolation_text = found.sentence(now_s)

    def publish(self, report: RoundReport) -> None:
        """Note a report of the rounds that show the run's progress."""
        self._note(report)
        match report:
            case Contributed(root):
                self.rounds.own_roots.append(root)
            case Downloading(progress):
                self.downloading(progress)
            case DownloadEnded():
                self.download = None
            case RoundCommitted(link):
                self._committed(link)
            case LineageSwitched(path):
                self.rounds.switched()
                for node in path:
                    self.rounds.committed(node.link, self._traffic(), self.clock.unix_s())

    def publish_other_unit(self, report: RoundReport) -> None:
        """Note a report of the rounds of another unit."""
        self._note(report)
        if not isinstance(report, RoundCommitted) or report.link.record is None:
            return
        link, traffic = report.link, self._traffic()
        moved = self.rounds.traffic.other_unit_committed(link.unit, traffic) if traffic else RoundBytes(0, 0)
        log.info(
            "round_came_beside",
            unit=link.unit,
            index=link.index,
            members=len(report.link.record.contributors),
            bytes_up=moved.up,
            bytes_down=moved.down,
        )
        if link.roster == (self.peer,):
            self.for_host.set()

    def _note(self, report: RoundReport) -> None:
        """Note a report of the rounds of any unit."""
        self.health.take(report, self.clock.monotonic_s())
        if self.convicted.take(report):
            self.for_host.set()

    def latest_spans(self) -> list[dict[str, object]]:
        """Recent timed spans in order of their ends; seconds on a clock of this process."""
        return [asdict(span) for span in self.spans.newest()]

    def time_in(self, state: str) -> float:
        """For how many seconds this state has been shown. The owner's controls change it without `say`."""
        now_s = self.clock.monotonic_s()
        if state != self.shown[0]:
            self.shown = (state, now_s)
        return now_s - self.shown[1]

    def _committed(self, link: ChainLink) -> None:
        self.rounds.committed(link, self._traffic(), self.clock.unix_s())
        if self._is_behind(link):
            self.rounds.caught_up = "replay"
            return
        self.rounds.eta.committed(link.total_tokens, self.clock.unix_s())
        self.rounds.came_at_s = self.clock.monotonic_s()
        if is_bringer(link, self.peer):
            self.for_host.set()

    def _is_behind(self, link: ChainLink) -> bool:
        """Whether commits on top of this one were known when it was applied."""
        tree = self.known_commits()
        return tree is not None and goes_on(tree, link.commit)

    def _traffic(self) -> TrafficCount | None:
        return self.network.traffic() if self.network is not None else None
