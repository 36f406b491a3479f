"""Keeping up with the run: applies commits, asks for those we missed, and fetches other lineages (R14, R19, R24).

Rules: R14, R19, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

import structlog
import torch
import trio

from averaging.rounds.fetching.download import download_state, download_tools
from averaging.rounds.fetching.gather_results import Gatherer
from averaging.rounds.lineage.earlier_states import state_at
from averaging.rounds.lineage.fetched_results import FetchedResults, Path
from averaging.rounds.lineage.past.held_milestones import newest_milestone
from averaging.rounds.lineage.retention import generation_spacing
from averaging.rounds.lineage.round_context import Peerwide, RoundContext, Tell, tell_failure
from averaging.rounds.lineage.round_reports import (
    DownloadEnded,
    Downloading,
    DownloadProgress,
    LineageSwitched,
    RoundCommitted,
)
from averaging.rounds.lineage.trainer_updates import TrainerUpdater
from averaging.rounds.lineage.unit_chain import PreparedSwitch, UnitChain
from averaging.rounds.traffic.contribution import EncodedContribution
from averaging.rounds.traffic.spans import spanned
from averaging.rounds.traffic.transfer import fetch_commits
from averaging.state.state import UnitState
from protocol.errors import LocalProtocolError, PotluckError, StorageError, UnreachableError
from protocol.estimates.unit_disk import Occasion
from protocol.ids import CommitId, PeerId, short
from protocol.rounds.events import Applied, CommitsFetched, CommitStalled, Switched, SwitchFailed, SwitchPrepared
from protocol.rounds.following import would_switch
from protocol.rounds.lineage.chain import attested_roots
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import MAX_DEPTH, SpineView, TreeNode, best_head, known_commits
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.messages.wire import commit_id, decode_certificate, decode_record
from protocol.rounds.orders import CatchUp, Commit, PrepareSwitch, Switch
from protocol.rounds.queries import is_over
from protocol.rounds.state import OpenRound, RoundState

log = structlog.get_logger()

CATCH_UP_WITHIN_S: Final = 60.0
CERTIFICATES_AT_ONCE: Final = 16
"""Certificates verified in one step of the machine. Each of up to 64 signatures takes a few milliseconds, and messages must not
wait for a whole chain.
"""

USELESS_PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 30.0
MAX_SOURCES: Final = 256
SNAPSHOT_WITHIN_S: Final = 3600.0
"""Limit for a whole state: a large one takes long on a home line. Every frame has a shorter deadline of its own."""

PREPARED_WITHIN_S: Final = 600.0
"""How long the spine waits for another unit's bytes before it moves without that unit."""

NUM_ASKED_WITH_SPINE: Final = 3
"""Number of holders of the other lineage that are asked for a unit's commits when the spine is about to move."""

KEEP_AFTER_S: Final = 0.5
KEEP_AFTER_SHARE: Final = 0.1
"""Delay before a new state is written to disk: this time, or this share of the time since the previous commit. Right after a
commit the trainer takes the new state over, and other members on the same machine may still be busy with the commit. After a
crash in this time one more commit is replayed from the log.
"""

STALL_PAUSE_S: Final = 1.0
"""Pause before a failed write or download is tried again."""


class LineageDriver:
    """Performs the machine's orders about commits and lineages. `state()` returns the machine's current state."""

    def __init__(
        self,
        chain: UnitChain,
        tools: RoundContext,
        gatherer: Gatherer,
        adopter: TrainerUpdater,
        tell: Tell,
        peer: Peerwide,
        state: Callable[[], RoundState],
    ) -> None:
        self._peer = peer
        self._chain = chain
        self._tools = tools
        self._gatherer = gatherer
        self._trainer_updates = adopter
        self._tell = tell
        self._state = state
        self._prepared: PreparedSwitch | None = None
        self._prepared_with_spine: PreparedSwitch | None = None
        self._spine_target: SpineView | None = None
        """The spine's target when it last asked what this unit needs there."""

        self._fetched_results = FetchedResults(chain.tools.log)
        self._leaving: _Left | None = None
        self._downloads: dict[CommitId, tuple[CommitId, trio.CancelScope]] = {}
        """Downloads that are running, by last commit: the fork they start from."""
        self._under_way: dict[tuple[CommitId, CommitId], trio.Event] = {}
        """Switches that are being prepared, by fork and last commit, for the unit's own switch or one with the spine. The event
        is set when the preparation ends.
        """

        self._applied_s = -inf
        self._is_asked = False
        """Whether a generation is being written for a peer that asked."""

        self._is_out_of_reach_told = False
        self._asking: dict[PeerId, trio.Event] = {}
        self._pauses: dict[PeerId, tuple[float, float]] = {}

    # --- the next commit ------------------------------------------------------------------------------------------------------

    async def commit(self, action: Commit, contribution: EncodedContribution | None) -> None:
        """Get the commit's bytes on disk, log it and apply it. The trainer learns of it while the next round runs, before any
        work that a restart can do without.
        """
        link, record = action.link, action.link.record
        why, is_missing = "it names no bytes", False
        if record is not None:
            try:
                if await self._gatherer.gather(record, self._with_everybody(action.holders)):
                    await self._apply(action, record, contribution)
                    return
                why, is_missing = "no live peer has its bytes", self._chain.head.commit == record.parent
            except PotluckError as error:
                why = error.one_line()
                self._report_disk_failure("commit", error)
        await trio.sleep(STALL_PAUSE_S)
        await self._tell(CommitStalled(link.commit, why, is_missing))

    async def _apply(self, action: Commit, record: CommitRecord, contribution: EncodedContribution | None) -> None:
        link = action.link
        await self._trainer_updates.until_light(link, self._state().tree)
        if self._chain.held.torn_at == link.parent:
            contribution = None  # its snapshot was overwritten, and the trainer has begun anew
        with spanned(self._tools.record, "apply", link.unit, round_index=link.index):
            begin_shift = partial(self._trainer_updates.begin_shift, record, contribution)
            applied = await self._chain.apply(link, action.certificate, begin_shift)
        # the trainer's queue comes before the machine: a delta that is asked for from now on waits for this adoption
        applied = await self._trainer_updates.commit(link, record, applied, contribution)
        root = await self._chain.prove(applied)
        await self._tell(Applied(link, action.certificate, root, self._chain.votes_on(link.commit)))
        self._tools.publish(RoundCommitted(link))
        now_s = trio.current_time()
        since_s, self._applied_s = now_s - self._applied_s, now_s
        await trio.sleep(min(KEEP_AFTER_S, KEEP_AFTER_SHARE * since_s))
        if self._chain.head.commit == link.commit:  # else the next commit is kept instead
            await self._chain.keep(Occasion.WANTED if is_over(self._state()) else Occasion.COMMIT)
        await self._tidy_fetched()

    async def keep_asked(self) -> None:
        """A peer asked for our state: write one soon if the newest on disk is old, for those who ask next."""
        if self._is_asked:
            return
        self._is_asked = True
        try:
            await self._chain.keep(Occasion.WANTED if is_over(self._state()) else Occasion.ASKED)
        finally:
            self._is_asked = False

    def _report_disk_failure(self, task: str, error: PotluckError) -> None:
        """Report a disk that refuses to its owner. The machine retries by itself."""
        if isinstance(error, StorageError):
            tell_failure(self._tools.publish, task, error)

    def _with_everybody(self, holders: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        """The peers that should have it, then all other live peers."""
        others = sorted(peer for peer, view in self._state().peers.items() if not (view.lost or view.left))
        return tuple(dict.fromkeys((*holders, *others)))

    # --- commits that we missed -----------------------------------------------------------------------------------------------

    async def catch_up(self, action: CatchUp) -> None:
        """Ask a peer for the commits after the newest shared one. A peer that has nothing for us is asked less and less often."""
        source, now_s = action.source, self._tools.clock.monotonic_s()
        not_before_s, pause_s = self._pauses.get(source, (0.0, 0.0))
        if source in self._asking or now_s < not_before_s:
            return
        self._asking[source] = trio.Event()
        pause_s = min(MAX_PAUSE_S, 2 * pause_s or USELESS_PAUSE_S)
        try:
            with trio.move_on_after(CATCH_UP_WITHIN_S):
                if await self._fetch_commits(action):
                    pause_s = 0.0
        finally:
            self._asking.pop(source).set()
            if len(self._pauses) >= MAX_SOURCES:
                self._pauses.clear()
            self._pauses[source] = (self._tools.clock.monotonic_s() + pause_s, pause_s)

    async def _fetch_commits(self, action: CatchUp) -> bool:
        """Whether the answer contained anything new."""
        unit = self._chain.tools.unit
        raws = await fetch_commits(self._tools.network, action.source, unit, action.known)
        if not raws and not self._is_out_of_reach_told:
            self._is_out_of_reach_told = _told_if_out_of_reach(self._chain)
        certificates = [decode_certificate(raw) for raw in raws]
        known = self._state().tree.nodes
        is_useful = any(commit_id(decode_record(c.record).parent, c.record) not in known for c in certificates)
        for begin in range(0, len(certificates), CERTIFICATES_AT_ONCE):
            batch = tuple(certificates[begin : begin + CERTIFICATES_AT_ONCE])
            await self._tell(CommitsFetched(action.source, batch))
        return is_useful

    # --- another lineage ------------------------------------------------------------------------------------------------------

    async def prepare_switch(self, action: PrepareSwitch) -> None:
        """Get on disk what a switch needs, and compute the state that it leads to. Another lineage may be wanted meanwhile, and
        later this one again: running downloads go on, and what arrived stays on disk.
        """
        target = action.path[-1].link.commit
        for node in action.path:
            fork, scope = self._downloads.get(node.link.commit, (None, None))
            if scope is not None and (node.link.commit, fork) == (target, action.fork):
                return
            if scope is not None:
                scope.cancel()  # a shorter path of the same lineage: it would be fetched twice
        with trio.CancelScope() as scope:
            self._downloads[target] = (action.fork, scope)
            try:
                await self._prepare_switch(action, target)
            finally:
                if self._downloads.get(target) == (action.fork, scope):
                    del self._downloads[target]

    async def _prepare_switch(self, action: PrepareSwitch, target: CommitId) -> None:
        try:
            prepared = await self._prepare(action, target)
        except PotluckError as error:
            self._report_disk_failure("switch", error)
            await self._tell(SwitchFailed(target, error.one_line(), _missing(error)))
            return
        if prepared is not None:
            spine = SpineView(target, self._state().tree)
            await self._peer.prepare_others(self._chain.tools.unit, spine, action.holders)
            self._prepared = prepared
            await self._tell(SwitchPrepared(target))

    async def _prepare(self, action: PrepareSwitch, target: CommitId) -> PreparedSwitch | None:
        def is_wanted() -> bool:
            switching = self._state().switching
            return switching is not None and (switching.fork, switching.target) == (action.fork, target)

        return await self._ready_or_fetched(action, is_wanted)

    async def _ready_or_fetched(self, action: PrepareSwitch, is_wanted: Callable[[], bool]) -> PreparedSwitch | None:
        """Prepare a switch. One that is ready or under way, for this unit alone or with the spine, is not fetched again."""
        aim = action.fork, action.path[-1].link.commit
        while aim in self._under_way:
            await self._under_way[aim].wait()
        ready = next(
            (one for one in (self._prepared, self._prepared_with_spine) if one is not None and _aim(one) == aim), None
        )
        if ready is not None:
            return ready
        self._under_way[aim] = trio.Event()
        try:
            return await self._fetch_switch(action, is_wanted)
        finally:
            self._under_way.pop(aim).set()

    async def _fetch_switch(self, action: PrepareSwitch, is_wanted: Callable[[], bool]) -> PreparedSwitch | None:
        chain = self._chain
        fork_state = await state_at(chain, action.fork)
        with self._fetched_results.bringing(action.path):
            state, rest = await self._begin(action, fork_state, is_wanted)
            if not await self._gather_all(action, rest, is_wanted):
                return None
            state = await chain.replay(state, rest, is_own=state is not fork_state)
            return await chain.prepared(action.fork, action.path, fork_state, state)

    async def _tidy_fetched(self) -> None:
        """The head has moved: drop what was fetched of other lineages, except those that may still be followed."""
        state = self._state()
        if self._spine_target is not None and self.prepared_with(self._spine_target) is None:
            self._prepared_with_spine = None  # it holds a whole state
        waiting = [
            prepared.path[-1] for prepared in (self._prepared, self._prepared_with_spine) if prepared is not None
        ]

        def is_wanted(path: Path) -> bool:
            first, spines = path[0].link.commit, {id(view): view for view in (state.spine, self._spine_target)}
            preferred = (best_head(state.tree, spine=view) for view in spines.values())
            return path[-1] in waiting or any(state.tree.path(first, target) is not None for target in preferred)

        await self._fetched_results.tidy(self._chain.links, is_wanted)

    async def _begin(
        self, action: PrepareSwitch, fork_state: UnitState | None, is_wanted: Callable[[], bool]
    ) -> tuple[UnitState, tuple[TreeNode, ...]]:
        """A state, and the commits to replay on it. Starts from the fork if few commits follow, else from a whole state. If no
        live peer can serve the first choice, the other one is tried.
        """
        if fork_state is None:
            return await self._snapshot_on(action)
        if len(action.path) <= self._state().config.replay_at_most:
            try:
                await self._gather_all(action, action.path, is_wanted)
            except _BytesGoneError as error:
                return await self._snapshot_instead(action, error)
        else:
            try:
                return await self._snapshot_on(action)
            except _StateGoneError as error:
                is_far = len(action.path) > generation_spacing(self._chain.tools)
                if is_far and action.fork == self._chain.head.commit:
                    raise  # we are only behind, and the next peer that is asked may have a state
                log.info("results_instead", unit=self._chain.tools.unit, reason=error.one_line())
        return fork_state, action.path

    async def _gather_all(
        self, action: PrepareSwitch, nodes: tuple[TreeNode, ...], is_wanted: Callable[[], bool]
    ) -> bool:
        """Get the results of all these commits on disk; False if they are not wanted any more."""
        for node in nodes:
            record = node.link.record
            holders = self._with_everybody(action.holders)
            if record is None or not await self._gatherer.gather(record, holders, is_wanted):
                if not is_wanted():
                    return False
                raise _BytesGoneError(node.link.commit)
        return True

    async def _snapshot_instead(
        self, action: PrepareSwitch, error: _BytesGoneError
    ) -> tuple[UnitState, tuple[TreeNode, ...]]:
        """Look for a whole state when results are missing: a peer that downloaded its state has no results from before it. Only a
        state at or after the missing results helps.
        """
        try:
            return await self._snapshot_on(action, error.commit)
        except UnreachableError as other:
            log.info("no_state_instead", unit=self._chain.tools.unit, reason=other.one_line())
            raise error from other

    async def _snapshot_on(
        self, action: PrepareSwitch, first: CommitId | None = None
    ) -> tuple[UnitState, tuple[TreeNode, ...]]:
        """A whole state at some commit of the path, at or after `first` and attested by a later commit, and the commits left to
        replay.
        """
        path = action.path
        places = {node.link.commit: place for place, node in enumerate(path)}
        attested = attested_roots(node.link for node in path)
        least = 0 if first is None else places[first]
        wanted = {commit: root for commit, root in attested.items() if places.get(commit, -1) >= least}
        if not wanted:
            nothing = UnreachableError("a lineage of which no state is attested there", "a later commit that names one")
            raise _StateGoneError(path[0].link.commit, nothing)

        async def others() -> tuple[PeerId, ...]:
            return self._with_everybody(())

        tools = download_tools(self._tools.network, self._chain.tools, others)
        try:
            with trio.move_on_after(SNAPSHOT_WITHIN_S):
                state = await download_state(tools, self._with_everybody(action.holders), wanted, self._report_progress)
                return state, path[places[state.head] + 1 :]
        except UnreachableError as error:
            raise _StateGoneError(path[0].link.commit, error) from error
        finally:
            self._tools.publish(DownloadEnded())
        raise UnreachableError("a state that took too long", f"all of it within {SNAPSHOT_WITHIN_S / 3600:.0f} h")

    def _report_progress(self, progress: DownloadProgress) -> None:
        self._tools.publish(Downloading(progress))

    async def switch(self, action: Switch) -> None:
        """Flip the head to the prepared lineage."""
        prepared, self._prepared = self._prepared, None
        target = action.path[-1].link.commit
        if prepared is None or (prepared.fork, prepared.path[-1].link.commit) != (action.fork, target):
            await self._tell(SwitchFailed(target, "another switch was prepared meanwhile"))
            return
        self.leave(prepared)
        try:
            open_round = await self._peer.switch(self._chain.tools.unit, prepared)
        except PotluckError as error:
            self._report_disk_failure("switch", error)
            await self._tell(SwitchFailed(target, error.one_line()))
            return
        await self.moved(open_round)

    def leave(self, prepared: PreparedSwitch) -> None:
        """The head is about to flip and nothing else moves it: remember the lineage that is left while it is still here."""
        links = self._chain.links
        position = next((i for i, link in enumerate(links) if link.commit == prepared.fork), len(links))
        self._leaving = _Left(prepared, tuple(links[position + 1 :]), self._chain.state.anchor_N)

    async def moved(self, open_round: OpenRound) -> None:
        """The head is now on the prepared lineage: notify the trainer, then the machine."""
        left, self._leaving, chain = self._leaving, None, self._chain
        if left is None:
            raise LocalProtocolError("a switch that was not begun", "a prepared one")
        for _, scope in self._downloads.values():
            scope.cancel()  # no other lineage is wanted now
        await self._trainer_updates.switch(left.prepared, list(left.lost), left.anchor_N)
        await self._tell(Switched(chain.head, chain.root, open_round))
        self._tools.publish(LineageSwitched(left.prepared.path, left.lost))
        await self._tidy_fetched()

    # --- following the spine --------------------------------------------------------------------------------------------------

    async def ask_with_spine(self, sources: tuple[PeerId, ...]) -> None:
        """Ask some of these peers for this unit's commits. If a peer is being asked already, wait for its answer."""
        for source in sources[:NUM_ASKED_WITH_SPINE]:
            asked = self._asking.get(source)
            if asked is not None:
                await asked.wait()
                continue
            known = known_commits(self._state().tree, self._chain.head.commit)
            with contextlib.suppress(PotluckError):
                await self.catch_up(CatchUp(source, known, "the spine moves, and it may know where this unit goes"))

    async def prepare_with_spine(self, spine: SpineView, sources: tuple[PeerId, ...]) -> None:
        """Fetch what this unit needs to follow the spine to another lineage. If something cannot be had, the unit stays on its
        lineage when the spine moves, and follows by itself later.
        """
        self._spine_target, plan = spine, would_switch(self._state(), spine)
        if plan is None or self.prepared_with(spine) is None:
            self._prepared_with_spine = None
        if plan is None:
            return
        target = plan.path[-1].link.commit
        try:
            with trio.move_on_after(PREPARED_WITHIN_S):
                order = PrepareSwitch(plan.fork, plan.path, sources, plan.reason)
                self._prepared_with_spine = await self._ready_or_fetched(order, lambda: True)
        except PotluckError as error:
            log.warning(
                "not_prepared_beside", unit=self._chain.tools.unit, target=short(target), reason=error.one_line()
            )

    def prepared_with(self, spine: SpineView) -> PreparedSwitch | None:
        """The prepared switch, if it is the one that this unit has to make with the spine; else None."""
        plan, prepared = would_switch(self._state(), spine), self._prepared_with_spine
        if plan is None or prepared is None or (plan.fork, plan.path[-1]) != (prepared.fork, prepared.path[-1]):
            return None
        return prepared


def _aim(prepared: PreparedSwitch) -> tuple[CommitId, CommitId]:
    return prepared.fork, prepared.path[-1].link.commit


class _BytesGoneError(UnreachableError):
    """No live peer has the results of `commit`."""

    def __init__(self, commit: CommitId) -> None:
        super().__init__(f"no live peer has the bytes of commit {short(commit)}", "one holder")
        self.commit = commit


class _StateGoneError(UnreachableError):
    """No live peer has a whole state of a lineage that begins with `commit`."""

    def __init__(self, commit: CommitId, error: UnreachableError) -> None:
        super().__init__(error.found, error.expected, error.remedy)
        self.commit = commit


def _told_if_out_of_reach(chain: UnitChain) -> bool:
    """Name it if others are so far ahead that they have forgotten what comes after our head. A start goes on from there."""
    newest = newest_milestone(chain.tools.milestones, chain.tools.unit)
    if newest is None or newest.link.index - chain.head.index <= MAX_DEPTH:
        return False
    reason = (
        f"others are after round {newest.link.index}, and have forgotten what comes after our round {chain.head.index}"
    )
    log.warning("out_of_reach", reason=reason, remedy="start this peer again: it begins anew there")
    return True


def _missing(error: PotluckError) -> CommitId | None:
    """The commit whose bytes nobody has, if that was the error."""
    return error.commit if isinstance(error, _BytesGoneError | _StateGoneError) else None


@dataclass(frozen=True)
class _Left:
    """A lineage that is being left: the switch, its commits since the fork, and its last anchor, (N,) float32."""

    prepared: PreparedSwitch
    lost: tuple[ChainLink, ...]
    anchor_N: torch.Tensor
