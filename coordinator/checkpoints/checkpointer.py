"""Decides when to write a checkpoint and which peers to fetch the state from. The files are written by checkpoints.py.

Peers keep only their newest states, so the target is the newest commit whose state root they agree on, not a fixed round. A
checkpoint is written at least every `every_rounds` commits, and at the end of the run exactly at its last one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.state.state import STATE_BYTES_PER_VALUE, state_root
from coordinator.checkpoints.checkpoints import (
    NO_COMPANIONS,
    CheckpointContent,
    Companions,
    UnitContent,
    lost_checkpoints,
    remove_checkpoint,
    remove_leftovers,
    unlisted_checkpoints,
    write_checkpoint,
)
from coordinator.checkpoints.thinning import CheckpointRules, drop_momentum, last_of_unit, old_ones, surplus
from coordinator.presence.presence import PeerEntry, live_peers
from coordinator.progress.chain_log import followed
from coordinator.progress.run_core import Phase, RunState
from coordinator.progress.run_view import root_by_majority
from coordinator.progress.stage_offsets import StageOffsets, seen
from protocol.errors import PotluckError, TemporaryError, UnreachableError
from protocol.host.calls import NO_COMMIT, NO_ROOT
from protocol.ids import CommitId, PeerId, Root, UnitName

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock, Offload
    from averaging.state.state import UnitState
    from coordinator.ledger.ledger import CheckpointRow, Ledger
    from coordinator.ledger.ledger_writer import LedgerWriter
    from coordinator.progress.chain_log import ChainLog
    from coordinator.progress.tracker import RunTracker
    from protocol.tensors.expert_schema import MixtureConfig
    from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema

_log = structlog.get_logger()

FETCH_LIMIT_S: Final = 120.0
"""Time limit for fetching a small state, in seconds. A large one gets the time that a slow line needs in addition."""

SLOW_BYTES_PER_S: Final = 1_000_000
NO_OFFSETS: Final = StageOffsets()
_POLL_S: Final = 0.5
_RETRY_S: Final = 3.0
_WRITE_COST_S: Final = 0.1

FetchState = Callable[[Sequence[PeerId], UnitName, "ChunkGrid", CommitId, Root], Awaitable["UnitState"]]
"""(donors, unit, grid, commit, expected root) -> the verified state: the transfer's function with the network bound."""

KeptState = Callable[[UnitName], Awaitable["UnitState | None"]]
"""(unit) -> its newest state in the host's own copy; None if the host keeps none."""


async def _keeps_none(unit: UnitName) -> UnitState | None:
    return None


@dataclass(frozen=True, slots=True)
class UnitTarget:
    """A unit's state to write, for a unit other than the spine. `donors` have it. Without donors, when the unit is frozen or at its
    start, the newest known state is written again.
    """

    unit: UnitName
    commit: CommitId
    root: Root
    donors: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """A state to write and its donors. With several units it is the spine's; `others` are the others, as most donors have them."""

    commit: CommitId
    index: int
    root: Root
    donors: tuple[PeerId, ...]
    others: tuple[UnitTarget, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherUnits:
    """The other units of a run. Each needs a commit, unless they are experts. Stages need one round, apart from `offsets`."""

    units: Sequence[UnitName] = ()
    are_experts: bool = False
    are_stages: bool = False
    offsets: StageOffsets = NO_OFFSETS


SPINE_ALONE: Final = OtherUnits()


@dataclass(frozen=True, slots=True)
class CheckpointPlace:
    """The destination of checkpoints, and their common content.

    Attributes:
        schema, grid: of the only unit, or of the spine.
        others: the same of the other units.
        whole: with several units, all tensors of the model in its own order.
        mixture: the experts' configuration, in a run of experts.
        first: returns a unit's state at the start of the run, for a unit without holders, copy or checkpoint.
        kept: returns the host's own copy of a unit.
        are_stages: whether the units are stages of one pipeline model.
    """

    folder: Path
    run_name: str
    run_id_hex: str
    schema: TensorSchema
    grid: ChunkGrid
    model: dict[str, int | float | bool | str]
    companions: Companions = NO_COMPANIONS
    others: tuple[tuple[TensorSchema, ChunkGrid], ...] = ()
    whole: TensorSchema | None = None
    mixture: MixtureConfig | None = None
    first: Callable[[UnitName], UnitState] | None = None
    kept: KeptState = _keeps_none
    are_stages: bool = False


def fetch_limit_s(place: CheckpointPlace) -> float:
    """Time limit for all states of one checkpoint, in seconds. Silent or slow donors are given up much earlier. This limit only
    ends a fetch that nothing else ends, and must not end one that is merely slow.
    """
    schema = place.whole or place.schema
    return FETCH_LIMIT_S + STATE_BYTES_PER_VALUE * schema.num_elements / SLOW_BYTES_PER_S


def _candidates(peers: Mapping[PeerId, PeerEntry], chain: ChainLog, now_s: float) -> Sequence[Target]:
    live = {peer: peers[peer] for peer in live_peers(peers, now_s)}
    targets = []
    for commit in {entry.report.state_commit for entry in live.values()}:
        link = chain.link(commit)
        root = chain.attested_root(commit) or root_by_majority(live, commit)
        is_followed = chain.tree.path(commit, chain.head.commit) is not None
        if link is None or root is None or not link.index or not is_followed:
            continue
        donors = tuple(
            sorted(p for p, e in live.items() if (e.report.state_commit, e.report.state_root) == (commit, root))
        )
        if donors:
            targets.append(Target(commit, link.index, root, donors))
    return sorted(targets, key=lambda target: (target.index, target.commit))


def _with_units(
    target: Target, peers: Mapping[PeerId, PeerEntry], chain: ChainLog, units: Sequence[UnitName]
) -> Target | None:
    """The target with the other units, each in the state that most donors have; None if one of them is at its start."""
    others: list[UnitTarget] = []
    for unit in units:
        holders: dict[tuple[CommitId, Root], list[PeerId]] = {}
        for peer in target.donors:
            # only the first entry of a peer about each unit counts
            part = next((part for part in peers[peer].report.beside if part.unit == unit), None)
            if part is None or part.state_commit == NO_COMMIT:
                continue
            link = chain.link(part.state_commit)
            if link is None or link.index:
                holders.setdefault((part.state_commit, part.state_root), []).append(peer)
        if not holders:
            return None
        commit, root = min(holders, key=lambda pair: (-len(holders[pair]), pair))
        others.append(UnitTarget(unit, commit, root, tuple(holders[commit, root])))
    return replace(target, others=tuple(others))


def _with_experts(
    target: Target, peers: Mapping[PeerId, PeerEntry], chain: ChainLog, units: Sequence[UnitName], now_s: float
) -> Target:
    """The target with all experts, each in the newest state of its live holders, at whichever trunk round they are. An expert
    without a holder has no donors.
    """
    others: list[UnitTarget] = []
    for unit in units:
        found: dict[tuple[CommitId, Root], list[PeerId]] = {}
        rounds: dict[tuple[CommitId, Root], int] = {}
        for peer in live_peers(peers, now_s):
            part = next((part for part in peers[peer].report.beside if part.unit == unit), None)
            if part is None or part.state_commit == NO_COMMIT or chain.knows(part.state_commit):
                continue  # An expert's state at a commit of the spine is its initial state.
            found.setdefault((part.state_commit, part.state_root), []).append(peer)
            rounds[part.state_commit, part.state_root] = part.index
        best = min(found, key=lambda pair: (-len(found[pair]), -rounds[pair], pair), default=None)
        pair = best if best is not None else (NO_COMMIT, NO_ROOT)
        others.append(UnitTarget(unit, *pair, tuple(found.get(pair, ()))))
    return replace(target, others=tuple(others))


def _have_reported_the_end(target: Target, peers: Mapping[PeerId, PeerEntry], now_s: float) -> bool:
    """Whether all live holders of experts have reported their position since they reached the last commit. Older reports may be
    rounds behind.
    """
    reports = [peers[peer].report for peer in live_peers(peers, now_s)]
    return all(report.state_commit == target.commit or not report.experts for report in reports)


def _with_stages(
    target: Target, peers: Mapping[PeerId, PeerEntry], stages: OtherUnits, now_s: float, *, is_over: bool
) -> Target | None:
    """The target with all other stages, at the same round of the model. A stage that was restored to an older state has another
    number for it. At the end, a stage whose work of a round was lost has another last round. It is taken once all its holders
    report that they are done.
    """
    others: list[UnitTarget] = []
    for unit in stages.units:
        standings = [
            (peer, peers[peer].report.state, part)
            for peer in live_peers(peers, now_s)
            for part in peers[peer].report.beside
            if part.unit == unit and part.state_commit != NO_COMMIT
        ]
        index = target.index - stages.offsets.of(unit)
        if is_over and standings and all(state == "finished" for _, state, _ in standings):
            index = max(part.index for _, _, part in standings)
        donors: dict[tuple[CommitId, Root], list[PeerId]] = {}
        for peer, _, part in standings:
            if part.index == index:
                donors.setdefault((part.state_commit, part.state_root), []).append(peer)
        if not donors:
            return None
        pair = min(donors, key=lambda pair: (-len(donors[pair]), pair))
        others.append(UnitTarget(unit, *pair, tuple(sorted(donors[pair]))))
    return replace(target, others=tuple(others))


def _newest_of(units: Sequence[UnitName], peers: Mapping[PeerId, PeerEntry], now_s: float) -> dict[UnitName, int]:
    """The newest index that live holders have of each unit other than the spine."""
    newest: dict[UnitName, int] = {}
    for peer in live_peers(peers, now_s):
        for part in peers[peer].report.beside:
            if part.unit in units and part.state_commit != NO_COMMIT:
                newest[part.unit] = max(part.index, newest.get(part.unit, 0))
    return newest


def due_checkpoint(
    state: RunState,
    chain: ChainLog,
    peers: Mapping[PeerId, PeerEntry],
    last_index: int,
    rules: CheckpointRules,
    now_s: float,
    others: OtherUnits = SPINE_ALONE,
) -> Target | None:
    """The state to write now, or None. `last_index` is the round of the newest checkpoint, 0 without one."""
    is_over = state.phase is Phase.FINISHED

    def complete(target: Target) -> Target | None:
        if others.are_experts and is_over and not _have_reported_the_end(target, peers, now_s):
            return None
        if others.are_stages:
            return _with_stages(target, peers, others, now_s, is_over=is_over)
        if others.are_experts:
            return _with_experts(target, peers, chain, others.units, now_s)
        return _with_units(target, peers, chain, others.units)

    found = [complete(target) for target in _candidates(peers, chain, now_s)]
    candidates = [target for target in found if target is not None]
    if is_over:
        final = [target for target in candidates if target.commit == state.head]
        return final[-1] if final else None
    if not candidates or candidates[-1].index - last_index < rules.every_rounds:
        return None
    return candidates[-1]


def _newest_behind(chain: ChainLog, rows: Sequence[CheckpointRow]) -> int:
    """The round of the newest checkpoint on the followed lineage, 0 without one. Checkpoints of abandoned lineages may be newer."""
    first, commits = min((row.index for row in rows), default=0), {row.commit for row in rows}
    for commit, index in chain.behind(chain.head.commit):
        if index < first:
            break
        if commit in commits:
            return index
    return 0


def _sides(chain: ChainLog, rows: Sequence[CheckpointRow]) -> tuple[Sequence[CheckpointRow], frozenset[CommitId]]:
    """The checkpoints that may be pruned, and those among them that lie on abandoned lineages.

    A checkpoint of an unknown commit after the head belongs to neither. If the ledger is an old copy, the commit may lie on the
    lineage that peers are about to show. Such a checkpoint is kept, and not counted, until the head reaches its round.
    """
    head = chain.head
    known, kept = [row for row in rows if row.index <= head.index or chain.knows(row.commit)], followed(chain)
    return known, frozenset(row.commit for row in known if not kept.has(row.commit, row.index))


def _remember(row: CheckpointRow, ledger: Ledger) -> None:
    ledger.add_checkpoint(row)


def _forget(commit: CommitId, ledger: Ledger) -> None:
    ledger.drop_checkpoint(commit)


class Checkpointer:
    """Writes checkpoints as they become due; run `run` as a task of the root nursery."""

    def __init__(
        self,
        place: CheckpointPlace,
        rules: CheckpointRules,
        tracker: RunTracker,
        ledger: LedgerWriter,
        fetch: FetchState,
    ) -> None:
        self._place = place
        self._rules = rules
        self._tracker = tracker
        self._ledger = ledger
        self._fetch = fetch
        self._offsets = NO_OFFSETS

    async def run(self, clock: Clock, offload: Offload) -> None:
        """Write checkpoints until cancelled. A failed one is logged with its reason and retried with fresh donors. One failure is
        usual: the commit is seconds old, and no peer has its state on disk yet.
        """
        try:
            await self.recover(offload)
        except PotluckError as error:
            _log.warning("checkpoints_not_recovered", reason=error.one_line())
        has_failed = False
        while True:
            target = self._due(clock)
            if target is None:
                await trio.sleep(_POLL_S)
                continue
            try:
                await self._write(target, clock, offload)
                has_failed = False
            except PotluckError as error:
                is_usual = isinstance(error, UnreachableError) and not has_failed
                tell = _log.info if is_usual else _log.warning
                tell("checkpoint_failed", index=target.index, reason=error.one_line(), retry_in_s=_RETRY_S)
                has_failed = True
                await trio.sleep(_RETRY_S)

    async def recover(self, offload: Offload) -> None:
        """Clean up after a crash: sweep unfinished folders, reconcile the ledger with the folders, prune.

        Raises:
            StorageError: the ledger or the folder refuses.
        """
        place, listed = self._place, self._tracker.checkpoints
        removed = await offload.run(lambda: remove_leftovers(place.folder))
        if removed:
            _log.info("unfinished_checkpoints_removed", count=removed)
        found = await offload.run(lambda: unlisted_checkpoints(place.folder, listed, place.run_id_hex))
        lost = await offload.run(lambda: lost_checkpoints(place.folder, listed))
        for row in found:
            await self._ledger.run(partial(_remember, row))
            _log.info("checkpoint_found_again", index=row.index, commit=row.commit[:4].hex())
        for row in lost:
            await self._ledger.run(partial(_forget, row.commit))
            _log.warning("checkpoint_lost", index=row.index, reason="its folder is gone")
        if found or lost:
            await self._tracker.refresh_checkpoints()
        await self._prune(offload)

    def _due(self, clock: Clock) -> Target | None:
        tracker = self._tracker
        if tracker.chain is None or tracker.is_final_checkpoint_written:
            return None
        last_index = _newest_behind(tracker.chain, tracker.checkpoints)
        place, now_s = self._place, clock.monotonic_s()
        units = [schema.unit for schema, _ in place.others]
        if place.are_stages:
            newest = _newest_of(units, tracker.peers, now_s)
            self._offsets = seen(self._offsets, tracker.chain.head.index, newest)
        others = OtherUnits(units, place.mixture is not None, place.are_stages, self._offsets)
        return due_checkpoint(tracker.state, tracker.chain, tracker.peers, last_index, self._rules, now_s, others)

    async def _write(self, target: Target, clock: Clock, offload: Offload) -> None:
        place = self._place
        content: CheckpointContent | None = None
        limit_s = fetch_limit_s(place)
        with trio.move_on_after(limit_s):
            content = await self.content(target, offload)
        if content is None:
            raise TemporaryError(f"no state of round {target.index} within {limit_s:.0f} s", "one in time")
        now = int(clock.unix_s())
        # Finish a write that has begun: half of one is useless.
        with trio.CancelScope(shield=True):
            row = await offload.run(
                partial(write_checkpoint, place.folder, content, now_unix_s=now), cost_s=_WRITE_COST_S
            )
            await self._ledger.run(lambda ledger: ledger.add_checkpoint(row))
        await self._tracker.refresh_checkpoints()
        _log.info("checkpoint_written", index=row.index, commit=row.commit[:4].hex(), root=row.state_root[:4].hex())
        await self._prune(offload)

    async def content(self, target: Target, offload: Offload) -> CheckpointContent:
        """The content of a target's checkpoint, fetched from its donors or taken from what the host has. Raises as the fetching
        does.
        """
        place = self._place
        state = await self._fetch(target.donors, place.schema.unit, place.grid, target.commit, target.root)
        content = CheckpointContent(
            run_name=place.run_name,
            run_id_hex=place.run_id_hex,
            schema=place.schema,
            grid=place.grid,
            model=place.model,
            state=state,
            root=target.root,
            tokenizer=place.companions.tokenizer,
            adapter=place.companions.adapter,
            template=place.companions.template,
        )
        if place.whole is None:
            return content
        units = [UnitContent(place.schema, place.grid, state, target.root)]
        for (schema, grid), part in zip(place.others, target.others, strict=True):
            if not part.donors:
                units.append(await self._known(schema, grid, offload))
                continue
            fetched = await self._fetch(part.donors, part.unit, grid, part.commit, part.root)
            units.append(UnitContent(schema, grid, fetched, part.root))
        return replace(content, schema=place.whole, units=tuple(units), mixture=place.mixture)

    async def _known(self, schema: TensorSchema, grid: ChunkGrid, offload: Offload) -> UnitContent:
        """The newest state of a unit without a holder: the host's own copy or the newest checkpoint's, whichever is of a later
        round, else the initial state.
        """
        kept: UnitState | None = None
        try:
            kept = await self._place.kept(schema.unit)
        except PotluckError as error:
            _log.warning("kept_unit_not_read", unit=schema.unit, reason=error.one_line())
        stored = await offload.run(partial(self._stored, schema, grid), cost_s=_WRITE_COST_S)
        if stored is not None and (kept is None or kept.index < stored.state.index):
            return stored
        if kept is None:
            kept = await offload.run(partial(self._first, schema.unit), cost_s=_WRITE_COST_S)
        root = await offload.run(partial(state_root, kept, grid), cost_s=_WRITE_COST_S)
        return UnitContent(schema, grid, kept, root)

    def _stored(self, schema: TensorSchema, grid: ChunkGrid) -> UnitContent | None:
        """A unit from the newest intact checkpoint that is not on an abandoned lineage, also one without momentum; None if there is
        none. Blocks.
        """
        rows, chain = self._tracker.checkpoints, self._tracker.chain
        left = frozenset[CommitId]() if chain is None else _sides(chain, rows)[1]
        for row in sorted((row for row in rows if row.commit not in left), key=lambda row: -row.index):
            try:
                return last_of_unit(self._place.folder / row.path, schema, grid)
            except PotluckError as error:
                _log.warning("checkpoint_not_read", index=row.index, reason=error.one_line())
        return None

    def _first(self, unit: UnitName) -> UnitState:
        if self._place.first is None:
            raise TemporaryError(f"no state of {unit} anywhere", "a live holder, or a checkpoint")
        return self._place.first(unit)

    async def _prune(self, offload: Offload) -> None:
        rows, left = self._tracker.checkpoints, frozenset[CommitId]()
        if self._tracker.chain is not None:
            rows, left = _sides(self._tracker.chain, rows)
        for row in surplus(rows, self._rules, left):
            await self._ledger.run(partial(_forget, row.commit))
            await offload.run(partial(remove_checkpoint, self._place.folder, row), cost_s=_WRITE_COST_S)
            _log.info("checkpoint_pruned", index=row.index)
        await self._tracker.refresh_checkpoints()
        for row in old_ones(rows, self._rules, left):
            try:
                await offload.run(partial(drop_momentum, self._place.folder / row.path), cost_s=_WRITE_COST_S)
            except PotluckError as error:
                _log.warning("momentum_not_dropped", index=row.index, reason=error.one_line())
