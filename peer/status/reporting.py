"""Reports to the coordinator, and held-out losses when this peer has to measure them. Either may fail without harm."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog
import torch
import trio

from averaging.network.seams.interfaces import HeldoutLosses, ReadAnchors
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.spans import EVALUATE, spanned
from averaging.rounds.unit_service import RoundService
from peer.gate.host_gate import HostGate
from peer.membership.coordinator_client import CoordinatorClient
from peer.membership.kept_milestones import KeptMilestones
from peer.membership.revocations import Revocations
from peer.status.duties_core import EvaluationTurns, is_bringer, place_to_bring
from peer.status.status import PeerStatus
from peer.status.status_board import StatusBoard
from peer.status.status_of import Sources, status_of
from peer.training.peer_trainer import PeerTrainer
from protocol.errors import PotluckError, RefusedError, RemoteProtocolError, SupersededError
from protocol.host.calls import NO_COMMIT, NO_ROOT
from protocol.host.host_statements import NO_STATEMENTS, HostStatements
from protocol.host.report_delta import report_digest, shortened
from protocol.host.report_pace import again_in_s, turn_s
from protocol.host.reports import (
    MAX_CERTIFICATES,
    MAX_JOULES,
    NO_PROOFS,
    EnergySpent,
    HeldoutResult,
    OwnCounts,
    PeerReport,
    ReportReply,
    UnitBytes,
    UnitStanding,
    bounded_nats,
    cut_certificates,
)
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.wire import encode_certificate
from protocol.tensors.expert_schema import expert_unit
from protocol.tensors.model_config import WHOLE_MODEL

log = structlog.get_logger()

REPORT_EVERY_S: Final = 2.0
"""Least interval of reports after a change. In a large run the turn of all peers is longer (protocol/host/report_pace.py)."""

GIVE_WAY_S: Final = 1.0
"""After a commit, its uploaders have this long before others report it. The others' reports are spread over the same time again, or
over a turn of all if that is longer.
"""

CATCH_UP_EVERY_S: Final = 0.25
"""Interval while the coordinator fetches commits that we have. After a long absence it has many to fetch."""

_NOT_STARTED: Final = "gathering"
"""The phase that a coordinator names while it has no start record."""

_UNDER_WAY: Final = "training"

MAX_HELDOUT_KEPT: Final = 32
"""Results that may wait for the host; a report has room for this many."""

EVALUATE_WITHIN_S: Final = 120.0
UNHEARD_WITHIN_S: Final = 30.0
"""Instead, for the last commit of a run whose host is silent: it may not come back for the result, and the peer wants to end."""


def left_behind(service: RoundService, known: Container[CommitId]) -> Mapping[CommitId, bytes]:
    """Certificates of known commits that are not on our lineage, parents first, without those in `known`. The coordinator records
    both sides of a fork, and a fork may be healed before the coordinator hears of it. A lone commit on our head that we do not follow
    is a side, too.
    """
    tree = service.state.tree
    if not tree.has_fork and not tree.has_lone:
        return {}
    followed = {link.commit for link in service.chain.links}
    nodes = sorted(tree.nodes.values(), key=lambda node: (node.link.index, node.link.commit))
    return {
        node.link.commit: encode_certificate(node.certificate)
        for node in nodes
        if node.certificate is not None and node.link.commit not in followed and node.link.commit not in known
    }


def make_report(
    sources: Sources,
    *,
    is_ready_to_start: bool,
    want_from_index: int,
    asides: Sequence[bytes] = (),
    signed: HostStatements = NO_STATEMENTS,
) -> PeerReport:
    """A report for the coordinator, with the certificates that it asked for. Those in `asides` follow if there is room."""
    board, status, service = sources.board, status_of(sources), sources.of_spine
    certificates: tuple[bytes, ...] = ()
    spine, beside = _spine_of(sources, status), sources.others
    if sources.follower is not None and sources.service is not None:
        beside = (sources.service, *beside)
    if service is not None:
        certificates = cut_certificates((*service.chain.line.since(want_from_index, MAX_CERTIFICATES), *asides))
    return PeerReport(
        state=status.state,
        reason=status.reason[:200],
        unit=spine.unit,
        head=spine.head,
        index=spine.index,
        total_tokens=spine.total_tokens,
        tokens_per_s=status.tokens_per_s,
        tokens_ready=max(0, status.tokens_ready),
        loss_nats=status.loss,
        bytes_up=status.bytes_up,
        bytes_down=status.bytes_down,
        state_commit=CommitId(bytes.fromhex(status.state_commit)) if sources.follower is None else NO_COMMIT,
        state_root=service.chain.root if service is not None else NO_ROOT,
        is_ready_to_start=is_ready_to_start,
        heldout=tuple(board.heldout),
        proofs=board.convicted.next_for_host,
        certificates=certificates,
        addresses=board.network.addresses()[:8] if board.network is not None else (),
        signed=signed,
        version=board.version,
        chosen=sources.chosen,
        is_outbound_only=board.is_outbound_only,
        beside=tuple(_standing(other.chain) for other in beside),
        experts=sources.experts.wanted if sources.experts is not None else (),
        expert_room=sources.experts.room if sources.experts is not None else 0,
        incarnation=board.incarnation,
        unit_bytes=tuple(UnitBytes(UnitName(unit), *moved) for unit, moved in status.unit_bytes.items()),
        lane=status.lane,
        could_tokens_per_s=status.could_tokens_per_s,
        counts=OwnCounts(status.source_tokens, _energy(status)),
    )


def _energy(status: PeerStatus) -> EnergySpent | None:
    if status.energy_joules is None:
        return None
    return EnergySpent(min(status.energy_joules, MAX_JOULES), max(0, status.tokens_trained), status.grid_g_per_kwh)


@dataclass(frozen=True, slots=True)
class _SpineStand:
    unit: UnitName
    head: CommitId
    index: int
    total_tokens: int


def _spine_of(sources: Sources, status: PeerStatus) -> _SpineStand:
    """The head of the spine, whether this peer holds the spine or follows its records."""
    follower, service = sources.follower, sources.service
    if follower is not None:
        link = follower.view.link
        return _SpineStand(follower.unit, follower.view.head, link.index, link.total_tokens)
    unit = service.unit if service is not None else WHOLE_MODEL
    return _SpineStand(unit, CommitId(bytes.fromhex(status.head)), status.index, status.total_tokens)


def _standing(chain: UnitChain) -> UnitStanding:
    return UnitStanding(chain.tools.unit, chain.rooted, chain.root, chain.head.index)


def _numbers(report: PeerReport) -> tuple[bool, bool]:
    """Whether each of the moving numbers is above zero. Their first values are reported at once."""
    return report.loss_nats is not None, report.tokens_per_s > 0


class Reporter:
    """Reports changes at once, and otherwise sends a sign of life every few seconds. Remembers the coordinator's last answer.

    A report leaves out what the coordinator already knows (protocol/host/report_delta.py) and commits that other members upload
    (peer/status/duties_core.py). Our credential is sent only to a coordinator that may not know us. A coordinator that has
    forgotten us refuses the report without it, and then receives a whole report.
    """

    def __init__(
        self,
        client: CoordinatorClient,
        sources: Sources,
        was_heard: Callable[[], None],
        own_credential: Callable[[], bytes] = bytes,
        revocations: Revocations | None = None,
    ) -> None:
        self._was_heard = was_heard
        self._own_credential = own_credential
        self._revocations = revocations
        self._client = client
        self._sources, self._board = sources, sources.board
        self._want_from_index = 1
        self._sent_asides: set[CommitId] = set()
        self._is_fetching = False
        self._is_up_to_date = False
        self._refused = ""
        self._reported_at_s = self._tried_at_s = -math.inf
        self._reported_numbers = (False, False)
        self.start_record = b""
        self.milestones: KeptMilestones | None = None
        self.gate: HostGate | None = None
        self.is_ready_to_start = False
        self.is_leaving = False
        self.last_reply: ReportReply | None = None

    @property
    def reported_index(self) -> int:
        """The host's round in its last answer, 0 before the first answer."""
        return self.last_reply.index if self.last_reply is not None else 0

    async def report_once(self, *, spares_commits: bool = False) -> bool:
        """Send one report. Returns False if it did not arrive or was refused; a later report carries everything again.
        `spares_commits` leaves out certificates that other members upload.

        Raises:
            SupersededError: the coordinator hears a newer process of this identity; this one has to end.
        """
        asides = self._asides()
        report = self._made(tuple(asides.values()), spares_commits=spares_commits)
        self._reported_at_s, self._tried_at_s = -math.inf, trio.current_time()
        try:
            reply = await self._say(report)
        except SupersededError:
            raise
        except (RefusedError, RemoteProtocolError) as error:
            # We were never admitted, or a clock is wrong. The owner can fix either, so log it once.
            if error.found != self._refused:
                log.warning("report_refused", reason=error.one_line())
            self._refused = error.found
            self._was_heard()
            return False
        except PotluckError as error:
            log.debug("report_not_delivered", reason=error.one_line())
            return False
        self._was_heard()
        self._refused = ""
        self._reported_at_s, self._reported_numbers = trio.current_time(), _numbers(report)
        sent = set(report.certificates)
        self._sent_asides.update(commit for commit, raw in asides.items() if raw in sent)
        self._board.heldout[:] = [h for h in self._board.heldout if h not in report.heldout]
        self._board.convicted.host_has(report.proofs)
        self._note(reply)
        await self._take_revocations(reply)
        if self.milestones is not None:
            await self.milestones.take(reply.milestones, "the host")
        if self.gate is not None:
            await self.gate.take(reply.gate, "the host")
        return True

    def _asides(self) -> Mapping[CommitId, bytes]:
        """Commits on abandoned lineages. None until the coordinator has our lineage, because it cannot place their branches."""
        service = self._sources.of_spine
        return left_behind(service, self._sent_asides) if service is not None and not self._is_asked() else {}

    async def _say(self, report: PeerReport) -> ReportReply:
        """Send a short report if the coordinator knows one to compare with, without our credential if its last answer shows that it
        knows us. Otherwise send a whole report with the credential.
        """
        last = self.last_reply
        if last is not None and last.like:
            try:
                return await self._client.report(shortened(report) if last.like == report_digest(report) else report)
            except SupersededError:
                raise
            except (RefusedError, RemoteProtocolError) as error:
                log.debug("report_said_whole", reason=error.one_line())
                self.last_reply = replace(last, like=b"")
        return await self._client.report(report, self._own_credential())

    def _made(self, asides: tuple[bytes, ...] = (), *, spares_commits: bool = False) -> PeerReport:
        """A report with our present head and those commits that the coordinator asked for and that are here."""
        is_start_asked = self.last_reply is not None and self.last_reply.phase == _NOT_STARTED
        report = make_report(
            self._sources,
            is_ready_to_start=self.is_ready_to_start,
            want_from_index=self._num_commits() + 1 if spares_commits else self._want_from_index,
            asides=asides,
            signed=self._signed(self.start_record if is_start_asked else b""),
        )
        return replace(report, state="left") if self.is_leaving else report

    def _signed(self, start_record: bytes) -> HostStatements:
        reply, revocations, milestones = self.last_reply, self._revocations, self.milestones
        known, missing = b"", tuple[bytes, ...]()
        if revocations is not None:
            known = revocations.known
            missing = revocations.missing_at(reply.known_revocations) if reply and reply.asks_revocations else ()
        if milestones is None:
            return HostStatements(start_record, known, missing)
        links = self._sources.spine_links
        is_asked = bool(links) and reply is not None and reply.phase == _UNDER_WAY
        brought = milestones.to_bring(links[0].unit, self.reported_index) if is_asked else ()
        return HostStatements(start_record, known, missing, milestones.known, brought)

    def _note(self, reply: ReportReply) -> None:
        """Note what the coordinator asks for next."""
        if reply.want_from_index < self._want_from_index:
            self._sent_asides.clear()  # it may have forgotten those, too; sending known ones again does no harm
        is_new = reply.want_from_index != self._want_from_index
        self._want_from_index = reply.want_from_index
        # Now also commits that other members should have uploaded and did not.
        self._is_fetching = self._is_asked() and (is_new or self._is_up_to_date)
        self._is_up_to_date = not self._is_asked()
        self.last_reply = reply
        self._board.hears_host(self._sources.spine_links, reply.head, reply.index)

    async def _take_revocations(self, reply: ReportReply) -> None:
        try:
            if self._revocations is not None:
                await self._revocations.take(reply.revocations)
        except PotluckError as error:
            log.warning("revocations_refused", reason=error.one_line())

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self._board.for_host = trio.Event()
            spares_commits = await self._give_way()
            was_heard = self._is_nothing_new() or await self.report_once(spares_commits=spares_commits)
            await self._rest(is_asked=was_heard and self._is_fetching)

    async def _give_way(self) -> bool:
        """Whether to leave our newest commit to other members for a moment. True if the coordinator had all earlier ones at its
        last answer and the newest is not ours to upload.
        """
        service, board = self._sources.of_spine, self._board
        if service is None or not self._is_up_to_date or is_bringer(service.chain.head, board.peer):
            return False
        spread_s = max(GIVE_WAY_S, self._turn_s) * place_to_bring(service.chain.head, board.peer)[0] / 256
        await self._wait(max(0.0, board.rounds.came_at_s + GIVE_WAY_S + spread_s - board.clock.monotonic_s()))
        return not is_bringer(service.chain.head, board.peer)  # another commit may have come

    async def _rest(self, *, is_asked: bool) -> None:
        """Wait until the next report. Wait longer if the coordinator expects neither commits nor a round from us."""
        await trio.sleep(CATCH_UP_EVERY_S)
        if not is_asked:
            with trio.move_on_after(REPORT_EVERY_S - CATCH_UP_EVERY_S):
                await self._board.for_host.wait()
            await self._wait(self._tried_at_s + self._turn_s - trio.current_time())

    async def _wait(self, seconds: float) -> None:
        """Wait so long, or until a commit comes that is ours to upload."""
        until_s = trio.current_time() + seconds
        while (left_s := until_s - trio.current_time()) > 0 and not self._is_urgent:
            self._board.for_host = trio.Event()
            with trio.move_on_after(left_s):
                await self._board.for_host.wait()

    @property
    def _is_urgent(self) -> bool:
        service, reply = self._sources.of_spine, self.last_reply
        if service is None or reply is None or service.chain.head.index <= reply.index:
            return False
        return is_bringer(service.chain.head, self._board.peer)

    @property
    def _turn_s(self) -> float:
        """Seconds between two reports of ours that are not urgent, so that the host is not asked by all peers at once."""
        reply = self.last_reply
        if reply is None:
            return 0.0
        return turn_s(1 + reply.live_others, reply.again_in_s, is_under_way=reply.phase == _UNDER_WAY)

    @property
    def again_s(self) -> float:
        """Seconds between two reports of ours while nothing changes, as the host says."""
        reply = self.last_reply
        is_under_way = reply is not None and reply.phase == _UNDER_WAY
        return (reply.again_in_s if reply is not None else 0.0) or again_in_s(1, is_under_way=is_under_way)

    def _is_nothing_new(self) -> bool:
        """Whether the coordinator knows everything we have to report, and heard from us lately."""
        reply, report = self.last_reply, self._made(tuple(self._asides().values()))
        if reply is None or self._is_fetching or reply.asks_revocations:
            return False
        is_same = reply.like == report_digest(report) and self._reported_numbers == _numbers(report)
        brings = (
            report.heldout
            or report.certificates
            or report.start_record
            or report.proofs != NO_PROOFS
            or report.milestones
        )
        return is_same and not brings and trio.current_time() - self._reported_at_s < self.again_s - REPORT_EVERY_S / 2

    def _is_asked(self) -> bool:
        """Whether the coordinator asks for commits of ours that were not sent yet."""
        return self._want_from_index <= self._num_commits()

    def _num_commits(self) -> int:
        service = self._sources.of_spine
        return service.chain.head.index if service is not None else 0


@dataclass(frozen=True, slots=True)
class ExpertLosses:
    """Decides which holder measures the held-out loss of each expert.

    Attributes:
        held: experts held here, in numeric order.
        listed: holders of each expert, according to the directory. Two peers that see different holders may both measure; the host
        shows the result of the one whose turn it is.
    """

    held: tuple[int, ...]
    listed: Callable[[], Mapping[PeerId, tuple[int, ...]]]

    def ours(self, link: ChainLink, turns: EvaluationTurns) -> tuple[int, ...]:
        """The experts that we have to measure at a commit: of the holders in its roster, the one whose turn it is measures."""
        listed = self.listed()

        def can_measure(expert: int) -> list[PeerId]:
            return [peer for peer in link.roster if peer == turns.me or expert in listed.get(peer, ())]

        return tuple(e for e in self.held if turns.is_ours(expert_unit(e), link.index, can_measure(e)))


ReadAt = Callable[[CommitId, Sequence[torch.Tensor]], Awaitable[None]]
"""`ReadAnchors` of a commit of the first unit."""


async def evaluate_commits(
    service: RoundService,
    trainer: PeerTrainer,
    turns: EvaluationTurns,
    board: StatusBoard,
    is_over: Callable[[], bool],
    read: ReadAt,
    experts: ExpertLosses | None = None,
    is_host_silent: Callable[[], bool] = lambda: False,
) -> None:
    """Measure the held-out loss of the commits assigned to this peer, until the run is over and its last commit is measured. `read`
    gives the outer parameters of all units. In a run of experts one holder measures each expert.
    """
    done: CommitId | None = None
    while not (is_over() and done == service.chain.head.commit):
        link, state = service.chain.head, service.chain.state
        if link.commit != done and state.head == link.commit:
            is_ours, ours = turns.is_commit_ours(link), experts.ours(link, turns) if experts is not None else ()
            if board.allowed.may_compute and (ours or (experts is None and is_ours)):
                within_s = UNHEARD_WITHIN_S if is_over() and is_host_silent() else EVALUATE_WITHIN_S
                with trio.move_on_after(within_s):
                    await _evaluate(trainer, partial(read, link.commit), ours, link, board, has_prose=is_ours)
            done = link.commit
        else:
            with trio.move_on_after(5.0):
                await service.wait_changed()


async def _evaluate(
    trainer: PeerTrainer,
    read: ReadAnchors,
    experts: tuple[int, ...],
    link: ChainLink,
    board: StatusBoard,
    *,
    has_prose: bool,
) -> None:
    try:
        span = spanned(board.spans.record, EVALUATE, "", f"round {link.index}", link.index)
        with span:
            losses = await trainer.evaluate(read, experts, has_prose=has_prose)
            board.heldout.append(_result(link, losses, experts))
            del board.heldout[:-MAX_HELDOUT_KEPT]
    except PotluckError as error:
        log.info("not_evaluated", index=link.index, reason=error.one_line())


def _result(link: ChainLink, losses: HeldoutLosses, experts: tuple[int, ...]) -> HeldoutResult:
    measured = [bounded_nats(each) for each in losses.nats]
    prose_nats = None if losses.prose_nats is None else bounded_nats(losses.prose_nats)
    nats = math.fsum(measured) / len(measured)
    of_experts = tuple(zip(experts, measured, strict=True)) if experts else ()
    return HeldoutResult(link.commit, link.index, link.total_tokens, nats, prose_nats, of_experts)
