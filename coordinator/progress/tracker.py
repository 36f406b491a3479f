"""The coordinator's state of the run. Performs what run_core decides, keeps the ledger and serves snapshots.

State that must survive a restart is written to the ledger before it changes in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from coordinator.energy.run_energy import MOST_PEERS, RunEnergy
from coordinator.history.history_rows import begins_at
from coordinator.history.old_copy import begun_again, check_own_start
from coordinator.ledger.convictions import Convictions
from coordinator.ledger.ledger import (
    COUNTED_COMMITS,
    REFUSED_COMMITS,
    START_RECORD,
    CheckpointRow,
    CommitRow,
    LossPoint,
)
from coordinator.ledger.recorded_bans import banned_peers
from coordinator.presence.junior_standings import JuniorStandings
from coordinator.presence.peer_book import PeerBook
from coordinator.presence.presence import FORGET_S, PeerEntry, helping, is_member, mean_train_loss
from coordinator.progress import run_core
from coordinator.progress.chain_log import Accepted, ChainLog, Growth, begun_at
from coordinator.progress.followed_lineage import FollowedLineage
from coordinator.progress.heldout_core import Settled, Turns
from coordinator.progress.live_lineages import PeerHeads, Seen
from coordinator.progress.loss_curves import LossCurves
from coordinator.progress.missing_commits import MissingLog, RefusedLog
from coordinator.progress.restart_report import Restart, RestartWatch
from coordinator.progress.run_core import AnnounceFinished, Phase, RunRules, RunState, SignStart
from coordinator.progress.run_view import RunPicture, SeenRounds, TimedRound, Yardsticks
from coordinator.progress.unit_holders import UnitHolders, check_claims, founding_record
from coordinator.progress.unit_keeper_core import UnitClaims, unit_claims
from coordinator.progress.unit_watch import UnitWatch
from protocol.errors import PotluckError
from protocol.host.calls import NO_COMMIT, START_DOMAIN, RunNews
from protocol.host.reports import NO_START_NEWS, PeerReport, ReportReply, StartNews
from protocol.identity.envelope import NEVER_MS, open_envelope, seal
from protocol.ids import CommitId, PeerId, RunId, UnitName
from protocol.rounds.lineage.chain_link import genesis_link
from protocol.rounds.lineage.lineage import MAX_DEPTH
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.lineage.round_row import round_row
from protocol.rounds.messages.start import StartUnit
from protocol.rounds.messages.wire import encode_body
from protocol.run.host_sections import has_loss_gate

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock, Offload
    from coordinator.audits.run_gate import RunGate
    from coordinator.history.run_history import RunHistory
    from coordinator.ledger.ledger_writer import LedgerWriter
    from protocol.identity.identity import Signer, Verifier
    from protocol.rounds.lineage.lineage import SpineView
    from protocol.run.manifest import RunManifest

_log = structlog.get_logger()

_SHOWN_ROUNDS: Final = 500
_VERIFY_COST_S: Final = 0.0005
_READ_COST_S: Final = 1e-5


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """The fixed facts of a run: manifest, units at the start, the host's signer, and each expert's share of the held-out text."""

    manifest: RunManifest
    run_id: RunId
    units: tuple[StartUnit, ...]
    signer: Signer
    verifier: Verifier
    checkpoint_folder: Path
    heldout_shares: tuple[float, ...] = ()

    @property
    def spine(self) -> UnitName:
        """The unit whose commits measure the run's progress."""
        return self.units[0].unit


class RunTracker:
    """State of the run in memory, backed by the ledger. Call `restore` once before anything else."""

    def __init__(self, run: TrackedRun, ledger: LedgerWriter, clock: Clock, offload: Offload) -> None:
        self._run = run
        self._ledger = ledger
        self._clock = clock
        self._offload = offload
        config = run.manifest.config.run
        self._rules = RunRules(config.min_members, config.max_members, config.total_tokens)
        self._state = RunState()
        self._chain: ChainLog | None = None
        self._reason, self._start_record = "the host has just started", b""
        self.book = PeerBook()
        self.helpers: dict[PeerId, float] = {}
        self.standings = JuniorStandings()
        self.history: RunHistory | None = None
        self.energy = RunEnergy(max(MOST_PEERS, 2 * config.most_peers))
        self._rounds = SeenRounds()
        self._seen_unix_s: dict[CommitId, int] = {}
        self.has_gate = has_loss_gate(run.manifest.config.round, run.manifest.config.admission, config.shards)
        self.curves = LossCurves(run.heldout_shares, has_many=self.has_gate)
        self.gate: RunGate | None = None
        self.convictions = Convictions(run.run_id, run.signer, run.verifier, ledger, clock)
        self._checkpoints: tuple[CheckpointRow, ...] = ()
        self._missing = MissingLog()
        self._refused = RefusedLog()
        self.banned: frozenset[PeerId] = frozenset()
        self._parts = run.manifest.parts
        self._units = UnitWatch(self._parts, are_stages=run.manifest.config.stages is not None)
        self._restart = RestartWatch()
        self._lineage = FollowedLineage(ledger, clock)
        self._turn, self._changed = trio.Lock(), trio.Event()

    @property
    def state(self) -> RunState:
        """Phase, head and tokens."""
        return self._state

    @property
    def chain(self) -> ChainLog | None:
        """Verified commits; None before the start."""
        return self._chain

    @property
    def start_record(self) -> bytes:
        """The host's signed start record as sealed, empty before the start."""
        return self._start_record

    @property
    def peers(self) -> Mapping[PeerId, PeerEntry]:
        """Newest report of each peer. It changes with each report: copy it to keep it over an await."""
        return self.book.entries

    def addresses_of(self, peers: Sequence[PeerId]) -> tuple[str, ...]:
        """Addresses that these peers report. A peer can only name addresses of its own."""
        reports = ((peer, self.peers[peer].report) for peer in peers if peer in self.peers)
        return tuple(a for peer, report in reports for a in report.addresses if a.endswith(f"/p2p/{peer}"))

    async def restore(self) -> None:
        """Read the state back from the ledger."""
        spine = self._run.spine
        start, counted, refused, begins, commits, points, checkpoints, banned = await self._ledger.run(
            lambda ledger: (
                ledger.get(START_RECORD),
                ledger.get(COUNTED_COMMITS),
                ledger.get(REFUSED_COMMITS),
                begins_at(ledger, spine),
                ledger.commits(spine),
                ledger.loss_points(),
                ledger.checkpoints(),
                banned_peers(ledger),
            )
        )
        self.banned = banned
        self.curves.restore(points)
        self._checkpoints = tuple(checkpoints)
        self._seen_unix_s = {row.commit: row.seen_unix_s for row in commits}
        if start is None:
            return
        chain = await self._begin(start)
        unlinked = await self._offload.run(lambda: chain.replay(commits, begins), cost_s=_READ_COST_S * len(commits))
        self._missing.note_unlinked(unlinked, commits, self._clock.monotonic_s())
        seen = Seen(self._seen_unix_s, self._clock.unix_s())
        self._lineage.restore(chain, counted or b"", refused or b"", seen)
        await self._follow_head(chain)
        _log.info("run_restored", index=self._state.index, total_tokens=self._state.total_tokens)
        lineage = dict(chain.behind(chain.head.commit))
        self._restart = RestartWatch(Restart(lineage, chain.head.index, self._clock.monotonic_s()))

    async def report(self, peer: PeerId, report: PeerReport, like: bytes = b"") -> ReportReply:
        """Take in a peer's report: presence, verified commits, losses. `like`: its digest, for the next short one.

        Raises:
            RemoteProtocolError: a certificate in it does not verify, or it names an unknown expert.
            StorageError: the ledger refused; the peer will send the same again.
        """
        check_claims(report, self._parts)
        if not self.standings.has_vote(peer):
            report = replace(report, heldout=())
        async with self._turn:
            if self._chain is None and report.start_record:
                await self._take_start(report.start_record)
            if self._chain is not None and self.history is not None and report.milestones:
                row = await begun_again(self._chain, report, self.history, int(self._clock.unix_s()))
                self._chain = begun_at(self._chain, row, self._run.verifier, self._run.run_id)
            want = await self._take_progress(peer, report)
            if not is_member(report, is_known=peer in self.peers):
                now_s = self._clock.monotonic_s()
                self.helpers = helping(self.helpers, peer, report, now_s, self.book.patience_s(now_s))
                return self._reply(peer, report, want)
            self.book.hear(peer, report, self._clock.monotonic_s(), like)
            self.energy.heard(peer, report.counts.energy)
            self._units.heard(peer, report)
            is_leaving = report.state == "left"
            has_started = report.head != NO_COMMIT
            again_in_s = self.book.again_in_s(self._clock.monotonic_s(), is_under_way=False)
            is_ready = report.is_ready_to_start and self.standings.has_vote(peer)
            reported = run_core.PeerReported(peer, is_ready, has_started, again_in_s)
            await self._step(run_core.PeerLeft(peer) if is_leaving else reported)
        return self._reply(peer, report, want)

    async def go_back(self, certificate: bytes) -> None:
        """Record a rewind that the host has just signed, and follow it.

        Raises:
            RemoteProtocolError: it does not verify.
            StorageError: the ledger refused; nothing has changed.
        """
        chain, now_s = self._chain, self._clock.monotonic_s()
        async with self._turn:
            if chain is not None:
                heads = self._lineage.heads(dict(self.book.heads(now_s)), self.book.patience_s(now_s))
                growth = chain.grown(chain.verify((certificate,)).new, heads)
                await self._grow(chain, growth, self.curves.taken_back(growth.head))

    async def _grow(self, chain: ChainLog, growth: Growth, losses: Settled, more: Sequence[LossPoint] = ()) -> None:
        """Record verified commits and points in one transaction, then take them over."""
        now = int(self._clock.unix_s())
        rows = [CommitRow(v.link.commit, v.link.unit, v.parent, v.link.index, v.certificate, now) for v in growth.new]
        points = (*losses.added, *more)
        await self._lineage.keep_refused(chain, growth.refused)
        if rows or points:
            await self._ledger.run(lambda ledger: ledger.add_progress(rows, points, losses.replaced))
        await self.convictions.look_at(growth.forked)
        self._seen_unix_s.update((row.commit, now) for row in rows)
        self.curves.take(losses, more)
        if chain.take(growth):
            await self._follow_head(chain)

    async def tick(self) -> None:
        """Drop peers that are long gone, and start the run when enough are ready. Call about once a second."""
        async with self._turn:
            now = self._clock.monotonic_s()
            self.book.forget(now)
            await self._step(run_core.RunTicked())
            self._tell_restart(now)
            if self._chain is not None:
                if await self._lineage.look(self._chain, dict(self.book.heads(now)), self.book.patience_s(now)):
                    await self._follow_head(self._chain)
                await self._show_what_waited(self._chain)
            self._units.tick(self.units_held() if self._state.phase is Phase.TRAINING else (), now)

    def _tell_restart(self, now_s: float) -> None:
        """After a restart: log whether the peers still have what the ledger records, until nothing is missing or FORGET_S is over."""
        before, chain = self._restart, self._chain
        if before.restart is None or chain is None:
            return
        heads = {entry.report.head for entry in self.peers.values()}
        self._restart = before.look([chain.behind(head) for head in heads], now_s, until_s=FORGET_S)
        if self._restart.sentence != before.sentence:
            _log.info("restarted", reason=self._restart.sentence)

    def units_held(self) -> tuple[UnitHolders, ...]:
        """The experts or stages with their current holders; empty before the start and in a run without."""
        if self._chain is None:
            return ()
        return self._units.held(self.book.live_reports(self._clock.monotonic_s()) if self._parts else {})

    @property
    def reason(self) -> str:
        """The run's situation in a sentence. A pause takes precedence."""
        is_under_way = self._state.phase is Phase.TRAINING
        held = self.gate.words if self.gate is not None else ""
        return (held or self._units.paused_because(self.units_held()) if is_under_way else "") or self._reason

    def unit_claims(self) -> tuple[UnitClaims, ...]:
        """The experts or stages as their live holders report them; empty before the start and in a run without."""
        if self._chain is None:
            return ()
        return unit_claims(self._parts, self.book.live_reports(self._clock.monotonic_s()))

    def spine_view(self) -> SpineView | None:
        """The spine's lineage that is followed here; None before the start."""
        return None if self._chain is None else self._chain.spine_view

    @property
    def units(self) -> UnitWatch:
        """Knowledge about the experts or stages. The keeper of their states reports to it, too."""
        return self._units

    def news(self) -> RunNews:
        """The run in one event of the watch."""
        state = self._state
        return RunNews(
            phase=state.phase.value,
            reason=self.reason,
            head=state.head or CommitId(b""),
            index=state.index,
            total_tokens=state.total_tokens,
            start_record=self._start_record,
            is_final_checkpoint_written=self.is_final_checkpoint_written,
        )

    async def wait_news(self, known: RunNews | None, *, at_most_s: float) -> RunNews:
        """The news as soon as they differ from `known`, apart from the reason, or the current ones after `at_most_s` seconds."""
        with trio.move_on_after(at_most_s):
            while known is not None and run_core.is_same_news(known, self.news()):
                await self._changed.wait()
        return self.news()

    @property
    def is_final_checkpoint_written(self) -> bool:
        """Whether the run is finished and its last state is on the host's disk."""
        return self._state.phase is Phase.FINISHED and any(c.commit == self._state.head for c in self._checkpoints)

    async def refresh_checkpoints(self) -> None:
        """Read the list of checkpoints again, after one was written or pruned."""
        self._checkpoints = tuple(await self._ledger.run(lambda ledger: ledger.checkpoints()))
        self._notify()

    @property
    def checkpoints(self) -> Sequence[CheckpointRow]:
        """Checkpoints on disk, oldest first."""
        return self._checkpoints

    def live_peers(self) -> frozenset[PeerId]:
        """Peers that reported recently."""
        return frozenset(self.book.live(self._clock.monotonic_s()))

    def picture(self) -> RunPicture:
        """One snapshot of the run."""
        manifest = self._run.manifest
        return RunPicture(
            run_name=manifest.config.run.name,
            run_id_hex=self._run.run_id.hex(),
            reason=self.reason,
            state=self._state,
            target_tokens=self._rules.target_tokens,
            peers=dict(self.peers),
            rounds=self._rounds,
            loss_points=self.curves.points,
            checkpoints=self._checkpoints,
            checkpoint_folder=self._run.checkpoint_folder,
            yardsticks=Yardsticks(manifest.zlib_bits_per_byte, manifest.pairs_nats_per_byte),
            missing=self._missing.shown(self._clock.monotonic_s()),
            restarted=self._restart.sentence,
            banned=self.banned,
            num_forks=self._chain.num_forks if self._chain is not None else 0,
            min_members=self._rules.min_members,
            units=self.units_held(),
            are_stages=manifest.config.stages is not None,
            stage_commits=self._units.stage_commits,
            source_names=manifest.config.data.source_names,
        )

    def _reply(self, peer: PeerId, report: PeerReport, want_from_index: int) -> ReportReply:
        state, now_s = self._state, self._clock.monotonic_s()
        heads = self.book.heads(now_s)
        is_waiting = report.is_ready_to_start and report.head == NO_COMMIT
        return ReportReply(
            state.phase.value,
            state.head or CommitId(b""),
            state.index,
            want_from_index,
            self.is_final_checkpoint_written,
            live_others=len(heads) - (peer in heads),
            again_in_s=self.book.again_in_s(now_s, is_under_way=state.phase is Phase.TRAINING),
            start=StartNews(self.reason, self._start_record) if is_waiting else NO_START_NEWS,
        )

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _step(self, event: run_core.RunEvent) -> None:
        before = self._state
        self._state, actions, self._reason = run_core.step(before, event, self._rules, self._clock.monotonic_s())
        for action in actions:
            match action:
                case SignStart(roster):
                    await self._sign_start(roster)
                case AnnounceFinished():
                    _log.info("run_finished", index=self._state.index, total_tokens=self._state.total_tokens)
        if (before.phase, before.head) != (self._state.phase, self._state.head):
            self._notify()

    async def _sign_start(self, roster: tuple[PeerId, ...]) -> None:
        try:
            await self._make_start(roster)
        except PotluckError as error:
            # The ledger's error must not be blamed on the reporting peer, nor end the host's tick.
            _log.warning("start_not_signed", reason=error.one_line())
        finally:
            if self._state.is_signing:  # failed, or cancelled together with the call that brought the last report
                now = self._clock.monotonic_s()
                self._state, _, self._reason = run_core.step(self._state, run_core.SigningFailed(), self._rules, now)

    async def _make_start(self, roster: tuple[PeerId, ...]) -> None:
        run, founders = self._run, {peer: self.peers[peer].report for peer in roster}
        record = founding_record(run.manifest, run.units, self._parts, founders, int(self._clock.unix_s()))
        sealed = seal(run.signer, START_DOMAIN, run.run_id, 0, NEVER_MS, encode_body(record))
        # If another start record was stored meanwhile, that one is the start.
        standing = await self._ledger.run(lambda ledger: ledger.put_once(START_RECORD, sealed))
        await self._begin(standing)
        _log.info("run_started", members=len(roster))

    async def _take_start(self, sealed: bytes) -> None:
        """Take over our own start record from a peer, where the ledger is an old copy that lacks it. Raises as `check_own_start`."""
        run = self._run
        check_own_start(sealed, SignatureCheck(run.verifier, run.run_id), run.signer, run.units)
        await self._begin(await self._ledger.run(lambda ledger: ledger.put_once(START_RECORD, sealed)))
        _log.warning("start_found_again", reason="a peer holds the start record that this ledger lacks")

    async def _begin(self, sealed: bytes) -> ChainLog:
        run = self._run
        envelope = open_envelope(
            sealed, verifier=run.verifier, domain=START_DOMAIN, run_id=run.run_id, now_unix_ms=None
        )
        genesis = genesis_link(envelope.payload, run.spine)
        chain = ChainLog(genesis, run.run_id, run.verifier)
        self._chain, self._start_record = chain, sealed
        await self._step(run_core.StartSigned(genesis.commit))
        return chain

    async def _take_progress(self, peer: PeerId, report: PeerReport) -> int:
        """Record a report's progress in one ledger transaction, then in memory. Returns the index to ask the peer for."""
        chain = self._chain
        if chain is None:
            return 1
        heads = self._stands(chain, peer, report)
        accepted = await self._verified(chain, report, heads)
        self._refused.check(peer, accepted.refused)
        growth = chain.grown(accepted.new, heads)
        fresh, trained = {item.link.commit: item.link for item in growth.new}, self._train_points(chain, growth)
        turns = self._turns(peer, report) if report.heldout else Turns(self._run.run_id)
        # Index and tokens come from the verified commit, not from the claim.
        measured = self.curves.heard(peer, report.heldout, lambda c: fresh.get(c) or chain.link(c), turns)
        live = self.live_peers() | {peer} if measured or self.curves.is_anything_waiting else frozenset[PeerId]()
        losses = self.curves.settled(measured, growth.tree, growth.head, live)
        await self._grow(chain, growth, losses, trained)
        self._missing.note(peer, report, chain, accepted, self._clock.monotonic_s())
        return accepted.want_from_index

    async def _verified(self, chain: ChainLog, report: PeerReport, heads: PeerHeads) -> Accepted:
        """The certificates of a report, verified in a thread. Most reports bring none."""
        certificates, head, index = report.certificates, report.head, report.index
        if not certificates:
            return chain.verify((), head, index)
        return await self._offload.run(
            lambda: chain.verify(certificates, head, index, heads), cost_s=_VERIFY_COST_S * len(certificates)
        )

    def _stands(self, chain: ChainLog, peer: PeerId, report: PeerReport) -> PeerHeads:
        """The heads of live peers with this report. They matter for lone commits alone, so mostly nobody's is looked at."""
        if not report.certificates and not chain.spine_view.tree.has_lone:
            return PeerHeads()
        own = {peer: report.head} if report.state != "left" else {}
        now_s = self._clock.monotonic_s()
        return self._lineage.heads({**self.book.heads(now_s), **own}, self.book.patience_s(now_s))

    def _turns(self, peer: PeerId, report: PeerReport) -> Turns:
        """The peers that may measure, by the live peers' reports and this one."""
        held = self._units.held({**self.book.live_reports(self._clock.monotonic_s()), peer: report})
        if not held or self._run.manifest.config.stages is None:
            return Turns(self._run.run_id, tuple(unit.holders for unit in held))
        return Turns(self._run.run_id, last_stage=held[-1].unit, stage_holders=held[-1].holders)

    async def _show_what_waited(self, chain: ChainLog) -> None:
        """Show the held-out losses of peers that stand in for those that are not live any more."""
        losses = self.curves.settled((), chain.tree, chain.head, self.live_peers())
        if losses.added:
            try:
                await self._ledger.run(lambda ledger: ledger.add_progress((), losses.added, losses.replaced))
            except PotluckError as error:
                _log.warning("losses_not_recorded", reason=error.one_line())
                return  # the next tick tries again
        self.curves.take(losses)

    def _train_points(self, chain: ChainLog, growth: Growth) -> Sequence[LossPoint]:
        if growth.head.commit == chain.head.commit:
            return ()
        nats = mean_train_loss(self.peers, self._clock.monotonic_s())
        if nats is None:
            return ()
        return (LossPoint("train", growth.head.index, growth.head.total_tokens, nats, PeerId("")),)

    async def _follow_head(self, chain: ChainLog) -> None:
        head = chain.head
        if len(self._seen_unix_s) > 2 * MAX_DEPTH:
            self._seen_unix_s = {commit: seen for commit, seen in self._seen_unix_s.items() if chain.knows(commit)}
        known = {timed.row.commit: timed for timed in self._rounds}
        self._rounds = SeenRounds(
            known.get(link.commit)
            or TimedRound(round_row(link), link.total_tokens, self._seen_unix_s.get(link.commit, 0))
            for link in chain.lineage(_SHOWN_ROUNDS)
        )
        await self._step(run_core.CommitVerified(head.commit, head.index, head.total_tokens))
