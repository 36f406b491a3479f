"""When checkpoints are written, from whom, and what happens when that fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import trio
from structlog.testing import capture_logs

import coordinator.checkpoints.checkpointer as checkpointer_module
from averaging.models.llama.config import LlamaConfig
from averaging.state.start_state import start_state
from averaging.state.state import UnitState, state_root
from coordinator.checkpoints.checkpointer import (
    FETCH_LIMIT_S,
    NO_OFFSETS,
    Checkpointer,
    CheckpointPlace,
    FetchState,
    OtherUnits,
    Target,
    UnitTarget,
    due_checkpoint,
)
from coordinator.checkpoints.checkpoints import (
    CheckpointContent,
    CheckpointManifest,
    UnitContent,
    parameters_name,
    read_manifest,
    unlisted_checkpoints,
    verify_checkpoint,
    write_checkpoint,
)
from coordinator.checkpoints.thinning import CheckpointRules, drop_momentum
from coordinator.presence.presence import PeerEntry
from coordinator.progress.chain_log import ChainLog
from coordinator.progress.run_core import Phase, RunState
from coordinator.progress.stage_offsets import StageOffsets, seen
from protocol.errors import StorageError, UnreachableError
from protocol.host.calls import NO_COMMIT, NO_ROOT
from protocol.host.reports import PeerReport, UnitStanding
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_config import model_schema
from protocol.tensors.model_units import model_units
from protocol.tensors.tensor_schema import ChunkGrid
from tests.coordinator.admission.test_service import start
from tests.coordinator.chain_world import PEERS, RUN_ID, VERIFIER, Chain
from tests.coordinator.checkpoints.loaded import load_checkpoint
from tests.coordinator.host_world import UNIT, HostWorld, open_host

A, B, C = (peer.peer_id for peer in PEERS)
RULES = CheckpointRules(every_rounds=2, keep=2, keep_every=4)
ROOT = Root(b"r" * 32)


def entry(commit: CommitId, root: Root = ROOT, seen_s: float = 0.0) -> PeerEntry:
    return PeerEntry(PeerReport("training", "", UNIT, state_commit=commit, state_root=root), seen_s)


def grown(rounds: int) -> tuple[ChainLog, list[CommitId]]:
    chain = Chain()
    commits = [chain.commit() for _ in range(rounds)]
    log = ChainLog(chain.genesis, RUN_ID, VERIFIER)
    log.add(log.verify(chain.certificates).new)
    return log, commits


def test_nothing_is_due_before_enough_rounds() -> None:
    log, commits = grown(2)
    training = RunState(phase=Phase.TRAINING)
    assert due_checkpoint(training, log, {A: entry(commits[0])}, 0, RULES, 1.0) is None
    due = due_checkpoint(training, log, {A: entry(commits[1])}, 0, RULES, 1.0)
    assert due == Target(commits[1], 2, ROOT, (A,))
    assert due_checkpoint(training, log, {A: entry(commits[1])}, 1, RULES, 1.0) is None


def test_donors_are_those_with_the_root_of_most_and_heard_of_lately() -> None:
    log, commits = grown(2)
    odd = Root(b"x" * 32)
    peers = {A: entry(commits[1]), B: entry(commits[1]), C: entry(commits[1], odd)}
    due = due_checkpoint(RunState(phase=Phase.TRAINING), log, peers, 0, RULES, 1.0)
    assert due is not None
    assert (due.root, due.donors) == (ROOT, tuple(sorted((A, B))))
    late = {**peers, A: entry(commits[1], seen_s=-100.0), B: entry(commits[1], seen_s=-100.0)}
    due = due_checkpoint(RunState(phase=Phase.TRAINING), log, late, 0, RULES, 1.0)
    assert due is not None
    assert (due.root, due.donors) == (odd, (C,))


def test_attested_root_stands_above_what_peers_say_now() -> None:
    chain = Chain()
    first = chain.commit()
    chain.commit(attested=(first, Root(b"a" * 32)))
    log = ChainLog(chain.genesis, RUN_ID, VERIFIER)
    log.add(log.verify(chain.certificates).new)
    rules = replace(RULES, every_rounds=1)
    assert due_checkpoint(RunState(phase=Phase.TRAINING), log, {A: entry(first)}, 0, rules, 1.0) is None


def test_end_of_the_run_wants_exactly_the_last_commit() -> None:
    log, commits = grown(3)
    finished = RunState(phase=Phase.FINISHED, head=commits[2], index=3)
    assert due_checkpoint(finished, log, {A: entry(commits[1])}, 2, RULES, 1.0) is None
    due = due_checkpoint(finished, log, {A: entry(commits[1]), B: entry(commits[2])}, 2, RULES, 1.0)
    assert due is not None
    assert due.commit == commits[2]


def test_unknown_commits_are_never_a_target() -> None:
    log, _ = grown(1)
    assert due_checkpoint(RunState(phase=Phase.TRAINING), log, {A: entry(CommitId(b"?" * 32))}, 0, RULES, 1.0) is None


def test_a_commit_beside_the_followed_lineage_is_never_a_target_however_new_it_is() -> None:
    chain = Chain()
    chain.commit()
    beside = replace(chain.clone(), members=chain.members[:1])
    beside.commit((5,), voters=1, lone=True)
    for _ in range(3):
        beside.commit((5,), voters=1)
    last = chain.commit()
    log = ChainLog(chain.genesis, RUN_ID, VERIFIER)
    for each in (chain, beside):
        log.add(log.verify(each.certificates).new)
    peers = {A: entry(beside.head[0]), B: entry(last)}
    due = due_checkpoint(RunState(phase=Phase.TRAINING), log, peers, 0, RULES, 1.0)
    assert due == Target(last, 2, ROOT, (B,))


def test_of_several_units_each_is_wanted_as_most_of_the_spines_donors_have_it() -> None:
    log, commits = grown(2)
    unit, first, second = UnitName("embeddings"), CommitId(b"1" * 32), CommitId(b"2" * 32)

    def with_unit(peer_entry: PeerEntry, commit: CommitId) -> PeerEntry:
        return replace(peer_entry, report=replace(peer_entry.report, beside=(UnitStanding(unit, commit, ROOT),)))

    training, here = RunState(phase=Phase.TRAINING), entry(commits[1])
    peers = {A: with_unit(here, first), B: with_unit(here, first), C: with_unit(here, second)}
    due = due_checkpoint(training, log, peers, 0, RULES, 1.0, OtherUnits([unit]))
    assert due is not None
    assert due.others == (UnitTarget(unit, first, ROOT, tuple(sorted((A, B)))),)
    genesis = log.head
    while genesis.parent is not None:
        parent = log.link(genesis.parent)
        assert parent is not None
        genesis = parent
    for nowhere in (genesis.commit, NO_COMMIT):
        assert due_checkpoint(training, log, {A: with_unit(here, nowhere)}, 0, RULES, 1.0, OtherUnits([unit])) is None


def test_a_peer_that_names_a_unit_many_times_has_one_word_on_it() -> None:
    log, commits = grown(2)
    unit, forged, good = UnitName("embeddings"), CommitId(b"1" * 32), CommitId(b"2" * 32)
    here = PeerReport("training", "", UNIT, state_commit=commits[1], state_root=ROOT)
    honest = PeerEntry(replace(here, beside=(UnitStanding(unit, good, ROOT),)), 0.0)
    many = PeerEntry(replace(here, beside=(UnitStanding(unit, forged, ROOT),) * 100), 0.0)
    due = due_checkpoint(
        RunState(phase=Phase.TRAINING), log, {A: honest, B: honest, C: many}, 0, RULES, 1.0, OtherUnits([unit])
    )
    assert due is not None
    assert due.others == (UnitTarget(unit, good, ROOT, tuple(sorted((A, B)))),)


async def test_a_state_that_takes_its_time_on_a_slow_line_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        chain, donors = await start(host), Donors()
        monkeypatch.setattr(checkpointer_module, "SLOW_BYTES_PER_S", 1)

        async def slowly(
            asked: Sequence[PeerId], unit: UnitName, grid: ChunkGrid, commit: CommitId, root: Root
        ) -> UnitState:
            await trio.sleep(FETCH_LIMIT_S + 8.0 * grid.num_elements - 1.0)
            return await donors.fetch(asked, unit, grid, commit, root)

        writer = checkpointer(host, slowly)
        await commit_and_report(host, chain, donors, 2, 10)
        with trio.move_on_after(2.0 * (FETCH_LIMIT_S + 8.0 * host.grid.num_elements)):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(writer.run, host.clock, host.offload)
                while not host.tracker.checkpoints:
                    await trio.sleep(10.0)
                nursery.cancel_scope.cancel()
        assert newest_index(host) == 2


async def test_a_checkpoint_of_several_units_is_one_model(tmp_path: Path) -> None:
    model = LlamaConfig(dim=4, num_layers=2, num_heads=2, num_kv_heads=1, ffn_dim=6, context_tokens=8)
    spine, others = model_units(model, 1).schemas
    with open_host(tmp_path) as host:
        donors, folder = Donors(), tmp_path / "checkpoints"
        targets = []
        for number, schema in enumerate((spine, others)):
            state = start_state(schema, 1, CommitId(bytes([number]) * 32), model=model_schema(model))
            donors.states[state.head] = state
            targets.append((state.head, state_root(state, ChunkGrid(schema.num_elements, 256))))
        (head, root), (other_head, other_root) = targets
        place = CheckpointPlace(
            folder,
            "run",
            host.run_id.hex(),
            spine,
            ChunkGrid(spine.num_elements, 256),
            model.model_dump(),
            others=((others, ChunkGrid(others.num_elements, 256)),),
            whole=model_schema(model),
        )
        writer = Checkpointer(place, RULES, host.tracker, host.writer, donors.fetch)
        other = UnitTarget(others.unit, other_head, other_root, (B,))
        content = await writer.content(Target(head, 1, root, (A,), (other,)), host.offload)
    assert donors.asked == [(A,), (B,)]
    written = load_checkpoint(folder / write_checkpoint(folder, content, now_unix_s=1).path)[1]
    assert torch.equal(written.anchor_N, start_state(model_schema(model), 1).anchor_N)


def test_experts_are_wanted_as_their_live_holders_have_them_and_frozen_ones_without_donors() -> None:
    log, commits = grown(2)
    units = [UnitName(f"expert-{number}") for number in range(3)]
    first, second = CommitId(b"1" * 32), CommitId(b"2" * 32)

    def holding(at: CommitId, unit: UnitName, commit: CommitId, index: int, seen_s: float = 0.0) -> PeerEntry:
        here = entry(at, seen_s=seen_s)
        return replace(here, report=replace(here.report, beside=(UnitStanding(unit, commit, ROOT, index),)))

    peers = {
        A: holding(commits[1], units[0], first, 1),
        B: holding(commits[0], units[0], second, 2),  # behind with the trunk, ahead with its expert
        C: holding(commits[1], units[1], first, 7, seen_s=-100.0),
    }
    due = due_checkpoint(RunState(phase=Phase.TRAINING), log, peers, 0, RULES, 1.0, OtherUnits(units, are_experts=True))
    assert due is not None
    assert (due.commit, due.donors) == (commits[1], (A,))
    nobody = [UnitTarget(unit, NO_COMMIT, NO_ROOT, ()) for unit in units[1:]]
    assert due.others == (UnitTarget(units[0], second, ROOT, (B,)), *nobody)


def test_a_checkpoint_of_stages_is_of_one_round_whatever_number_a_restored_stage_has_for_it() -> None:
    log, commits = grown(4)
    training, stage = RunState(phase=Phase.TRAINING), UnitName("stage-1")

    def due(index: int, offsets: StageOffsets) -> Target | None:
        part = UnitStanding(stage, CommitId(bytes([100 + index]) * 32), ROOT, index)
        first = entry(commits[3])
        peers = {A: first, B: replace(first, report=replace(first.report, state_commit=NO_COMMIT, beside=(part,)))}
        return due_checkpoint(
            training, log, peers, 0, RULES, 1.0, OtherUnits([stage], are_stages=True, offsets=offsets)
        )

    assert due(4, NO_OFFSETS) is not None
    assert due(3, NO_OFFSETS) is None, "it is about to have the round, or lost one just now"
    behind = StageOffsets()
    for index in range(1, 6):
        behind = seen(behind, index, {stage: max(0, index - 1)})
    found = due(3, behind)
    assert found is not None
    assert (found.index, [(unit.unit, unit.commit[0]) for unit in found.others]) == (4, [(stage, 103)])
    assert due(4, behind) is None


def test_the_last_checkpoint_waits_until_live_holders_have_told_of_their_experts_at_the_end() -> None:
    """In a short run what a holder told last may be of the start of its expert."""
    log, commits = grown(2)
    unit, over = UnitName("expert-0"), RunState(phase=Phase.FINISHED, head=commits[1])

    def holder(at: CommitId, index: int) -> PeerEntry:
        here = entry(at)
        standing = UnitStanding(unit, CommitId(bytes([index]) * 32), ROOT, index)
        return replace(here, report=replace(here.report, experts=(0,), beside=(standing,)))

    def due(*holders: PeerEntry) -> Target | None:
        peers = dict(zip((A, B), holders, strict=False))
        return due_checkpoint(over, log, peers, 0, RULES, 1.0, OtherUnits([unit], are_experts=True))

    assert due(holder(commits[1], 3), holder(commits[0], 1)) is None
    reported = due(holder(commits[1], 3), holder(commits[1], 3))
    assert reported is not None
    assert reported.others[0].donors == (A, B)


async def test_a_frozen_expert_is_written_as_the_newest_checkpoint_or_the_start_has_it(
    tmp_path: Path, autojump_clock: object
) -> None:
    decoder = LlamaConfig(dim=4, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=6, context_tokens=8)
    mixture = MixtureConfig(num_experts=2, ffn_dim=4)
    units = held_units(decoder, mixture, range(2))
    grids = [ChunkGrid(schema.num_elements, 256) for schema in units.schemas]

    def state(place: int, number: int, index: int) -> UnitState:
        return replace(start_state(units.schemas[place], number, CommitId(bytes([number]) * 32)), index=index)

    with open_host(tmp_path) as host:
        await start(host)
        donors = Donors()
        place = CheckpointPlace(
            tmp_path / "checkpoints",
            "run",
            host.run_id.hex(),
            units.schemas[0],
            grids[0],
            decoder.model_dump(),
            others=tuple(zip(units.schemas[1:], grids[1:], strict=True)),
            whole=units.whole,
            mixture=mixture,
            first=lambda unit: state(units.place(unit), 9, 0),
        )
        writer = Checkpointer(place, RULES, host.tracker, host.writer, donors.fetch)

        async def write(trunk: UnitState, expert: UnitState | None) -> CheckpointManifest:
            for each in (trunk, expert):
                if each is not None:
                    donors.states[each.head] = each
            known = UnitTarget(units.schemas[1].unit, NO_COMMIT, NO_ROOT, ())
            if expert is not None:
                known = UnitTarget(expert.unit, expert.head, state_root(expert, grids[1]), (B,))
            frozen = UnitTarget(units.schemas[2].unit, NO_COMMIT, NO_ROOT, ())
            target = Target(trunk.head, trunk.index, state_root(trunk, grids[0]), (A,), (known, frozen))
            content = await writer.content(target, host.offload)
            row = write_checkpoint(place.folder, content, now_unix_s=1)
            host.ledger.add_checkpoint(row)
            await host.tracker.refresh_checkpoints()
            return verify_checkpoint(place.folder / row.path)

        expert = state(1, 5, 3)
        one = await write(state(0, 1, 1), expert)
        assert one.units is not None
        assert [(unit.unit, unit.index) for unit in one.units] == [("trunk", 1), ("expert-0", 3), ("expert-1", 0)]
        assert one.experts == mixture
        two = await write(state(0, 2, 2), None)
    assert two.units is not None
    assert [(unit.unit, unit.index) for unit in two.units] == [("trunk", 2), ("expert-0", 3), ("expert-1", 0)]
    assert two.units[1:] == one.units[1:]


@dataclass(frozen=True)
class _Frozen:
    """A run of one expert that nobody holds; `stored(index, commit)` writes a checkpoint in which it has had so many rounds."""

    host: HostWorld
    place: CheckpointPlace

    async def stored(self, index: int, commit: CommitId, trunk_index: int) -> None:
        place, (schema, grid) = self.place, self.place.others[0]
        assert place.whole is not None
        parts = [
            UnitContent(one, each, state, state_root(state, each))
            for one, each, state in (
                (place.schema, place.grid, replace(start_state(place.schema, 1, commit), index=trunk_index)),
                (schema, grid, self.state(index)),
            )
        ]
        content = CheckpointContent(
            place.run_name,
            place.run_id_hex,
            place.whole,
            place.grid,
            place.model,
            parts[0].state,
            parts[0].root,
            units=tuple(parts),
            mixture=place.mixture,
        )
        self.host.ledger.add_checkpoint(write_checkpoint(place.folder, content, now_unix_s=1))
        await self.host.tracker.refresh_checkpoints()

    def state(self, index: int) -> UnitState:
        return replace(start_state(self.place.others[0][0], 50 + index, CommitId(bytes([index]) * 32)), index=index)

    async def written(self, kept_index: int) -> int:
        """How many rounds the expert has had in the next checkpoint, where the host keeps it with so many (0: not at all)."""

        async def kept(unit: UnitName) -> UnitState | None:
            return self.state(kept_index) if kept_index else None

        donors, trunk = Donors(), start_state(self.place.schema, 3, CommitId(b"t" * 32))
        donors.states[trunk.head] = trunk
        place = replace(self.place, kept=kept)
        writer = Checkpointer(place, RULES, self.host.tracker, self.host.writer, donors.fetch)
        frozen = UnitTarget(self.place.others[0][0].unit, NO_COMMIT, NO_ROOT, ())
        target = Target(trunk.head, 1, state_root(trunk, place.grid), (A,), (frozen,))
        content = await writer.content(target, self.host.offload)
        assert content.units is not None
        found = content.units[1]
        assert found.root == state_root(self.state(found.state.index), found.grid)
        return found.state.index


def _frozen(host: HostWorld) -> _Frozen:
    decoder = LlamaConfig(dim=4, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=6, context_tokens=8)
    mixture = MixtureConfig(num_experts=1, ffn_dim=4)
    units = held_units(decoder, mixture, range(1))
    trunk, expert = units.schemas
    place = CheckpointPlace(
        host.folder / "checkpoints",
        "run",
        host.run_id.hex(),
        trunk,
        ChunkGrid(trunk.num_elements, 256),
        decoder.model_dump(),
        others=((expert, ChunkGrid(expert.num_elements, 256)),),
        whole=units.whole,
        mixture=mixture,
        first=lambda unit: replace(start_state(expert, 50, CommitId(bytes(32)))),
    )
    return _Frozen(host, place)


async def test_a_frozen_expert_is_written_as_the_host_keeps_it_where_that_is_further_than_the_newest_checkpoint(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await start(host)
        frozen = _frozen(host)
        assert await frozen.written(0) == 0
        assert await frozen.written(2) == 2
        await frozen.stored(3, CommitId(b"a" * 32), 1)
        assert [await frozen.written(kept) for kept in (0, 2, 3, 4)] == [3, 3, 3, 4]


async def test_a_frozen_expert_of_which_only_a_checkpoint_without_momentum_is_left_keeps_its_parameters(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        await start(host)
        frozen = _frozen(host)
        await frozen.stored(3, CommitId(b"a" * 32), 1)
        await frozen.stored(5, CommitId(b"b" * 32), 2)
        whole, damaged = (frozen.place.folder / row.path for row in host.tracker.checkpoints)
        drop_momentum(whole)
        (damaged / parameters_name(read_manifest(damaged).unit)).write_bytes(b"damaged")
        assert await frozen.written(0) == 3
        assert await frozen.written(2) == 3
        assert await frozen.written(4) == 4


async def test_a_frozen_expert_is_not_written_from_a_checkpoint_of_a_lineage_that_was_left(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        chain, donors = await start(host), Donors()
        other = chain.clone()
        await commit_and_report(host, chain, donors, 2, 2)
        left = chain.head[0]
        await commit_and_report(host, other, donors, 1, 300)
        assert host.tracker.state.head == other.head[0]
        frozen = _frozen(host)
        await frozen.stored(9, left, 2)
        assert [await frozen.written(kept) for kept in (0, 2)] == [0, 2]
        await frozen.stored(1, other.head[0], 1)
        assert [await frozen.written(kept) for kept in (0, 2)] == [1, 2]


class Donors:
    """Gives the states it holds; the first `failures` calls fail."""

    def __init__(self, failures: int = 0) -> None:
        self.states: dict[CommitId, UnitState] = {}
        self.failures = failures
        self.asked: list[tuple[PeerId, ...]] = []

    async def fetch(
        self, donors: Sequence[PeerId], unit: UnitName, grid: ChunkGrid, commit: CommitId, root: Root
    ) -> UnitState:
        self.asked.append(tuple(donors))
        if len(self.asked) <= self.failures:
            raise UnreachableError("no donor answers")
        return self.states[commit]


def checkpointer(host: HostWorld, fetch: FetchState) -> Checkpointer:
    config = host.manifest.config
    schema = host.manifest.unit_schemas()[UNIT]
    place = CheckpointPlace(
        host.folder / "checkpoints", config.run.name, host.run_id.hex(), schema, host.grid, config.model.model_dump()
    )
    kept = config.checkpoint
    rules = CheckpointRules(kept.every_rounds, kept.keep, kept.keep_every)
    return Checkpointer(place, rules, host.tracker, host.writer, fetch)


async def commit_and_report(host: HostWorld, chain: Chain, donors: Donors, rounds: int, tokens: int) -> None:
    """Grow the run and let a peer report the newest state as its own."""
    for _ in range(rounds):
        chain.commit((tokens, tokens, tokens))
    commit, index, total = chain.head
    begin = start_state(host.manifest.unit_schemas()[UNIT], 1, commit)
    state = replace(begin, index=index, total_tokens=total)
    donors.states[commit] = state
    report = PeerReport(
        "training",
        "",
        UNIT,
        head=commit,
        state_commit=commit,
        state_root=state_root(state, host.grid),
        certificates=tuple(chain.certificates),
    )
    await host.service.report(host.report(PEERS[0], report))


async def wait_for(condition: Callable[[], bool]) -> None:
    with trio.fail_after(120):
        while not condition():
            await trio.sleep(0.1)


def newest_index(host: HostWorld) -> int:
    return max((row.index for row in host.tracker.checkpoints), default=0)


async def test_checkpoints_are_pulled_pruned_and_end_with_the_last_commit(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        chain, donors = await start(host), Donors(failures=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(checkpointer(host, donors.fetch).run, host.clock, host.offload)
            for expected in (2, 4, 6):
                await commit_and_report(host, chain, donors, 2, 10)
                await wait_for(lambda expected=expected: newest_index(host) == expected)
            await wait_for(lambda: len(host.tracker.checkpoints) == 3)
            await commit_and_report(host, chain, donors, 1, 400)
            await wait_for(lambda: host.tracker.is_final_checkpoint_written)
            await wait_for(lambda: len(host.tracker.checkpoints) == 3)
            nursery.cancel_scope.cancel()
        rows = host.tracker.checkpoints
        assert [row.index for row in rows] == [2, 6, 7]  # the newest two, and the first of eight rounds
        assert donors.asked[0] == donors.asked[1] == (PEERS[0].peer_id,)
        folder = tmp_path / "checkpoints"
        assert sorted(path.name for path in folder.iterdir()) == [row.path for row in rows]
        assert verify_checkpoint(folder / rows[-1].path).commit == chain.head[0].hex()
        assert [verify_checkpoint(folder / row.path).momentum is None for row in rows] == [True, False, False]
        assert list(host.ledger.checkpoints()) == list(rows)


async def test_a_run_that_goes_on_from_a_lower_round_has_its_checkpoints_and_its_last_state(
    tmp_path: Path, autojump_clock: object
) -> None:
    """After a fork or a loss: those of the lineage that was left have higher rounds."""
    with open_host(tmp_path) as host:
        chain, donors = await start(host), Donors()
        trunk = chain.clone()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(checkpointer(host, donors.fetch).run, host.clock, host.offload)
            for expected in (10, 12, 14):
                await commit_and_report(host, chain, donors, 2 if expected > 10 else 10, 2)
                await wait_for(lambda expected=expected: newest_index(host) == expected)
            await commit_and_report(host, trunk, donors, 1, 300)  # more work in one round than in those 14
            assert host.tracker.state.index == 1
            await commit_and_report(host, trunk, donors, 5, 8)
            await wait_for(lambda: 6 in [row.index for row in host.tracker.checkpoints])
            await commit_and_report(host, trunk, donors, 1, 300)
            await wait_for(lambda: host.tracker.is_final_checkpoint_written)
            await wait_for(lambda: len(host.tracker.checkpoints) == 2)
            await trio.sleep(60)
            nursery.cancel_scope.cancel()
        assert [row.index for row in host.tracker.checkpoints] == [6, 7]
        assert host.tracker.is_final_checkpoint_written


async def test_checkpoints_ahead_of_an_old_copy_of_the_ledger_are_not_pruned_before_peers_show_their_commits(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        donors = await _with_checkpoints(host, 2, 4)
        old = host.tracker.checkpoints
        ahead = [replace(old[1], commit=CommitId(bytes([i]) * 32), index=i, path=f"{i:08d}-ahead") for i in (8, 9, 10)]
        for row in ahead:
            shutil.copytree(tmp_path / "checkpoints" / old[1].path, tmp_path / "checkpoints" / row.path)
            host.ledger.add_checkpoint(row)
        await host.tracker.refresh_checkpoints()
        await checkpointer(host, donors.fetch).recover(host.offload)
        assert list(host.tracker.checkpoints) == [*old, *ahead]


async def test_full_disk_is_logged_and_tried_again_without_losing_the_older(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_host(tmp_path) as host:
        chain, donors = await start(host), Donors()
        tries = 0
        real = checkpointer_module.write_checkpoint

        def full_twice(*args: object, **kwargs: object) -> object:
            nonlocal tries
            tries += 1
            if tries <= 2:
                raise StorageError("checkpoint of round 2 could not be written (No space left on device)")
            return real(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(checkpointer_module, "write_checkpoint", full_twice)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(checkpointer(host, donors.fetch).run, host.clock, host.offload)
            await commit_and_report(host, chain, donors, 2, 10)
            await wait_for(lambda: len(host.tracker.checkpoints) == 1)
            nursery.cancel_scope.cancel()
        assert tries == 3


@pytest.mark.parametrize(
    ("unreachable", "full", "levels"),
    [(1, 0, ["info"]), (3, 0, ["info", "warning", "warning"]), (0, 1, ["warning"])],
    ids=["nobody has it yet", "nobody has it for long", "a full disk"],
)
async def test_a_first_look_for_a_state_that_nobody_has_on_disk_yet_is_no_warning_and_a_second_one_is(
    unreachable: int,
    full: int,
    levels: list[str],
    tmp_path: Path,
    autojump_clock: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each checkpoint had one otherwise: peers write a state a second after its commit."""
    with open_host(tmp_path) as host:
        chain, donors = await start(host), Donors(unreachable)
        real, left = checkpointer_module.write_checkpoint, [full]

        def write(*args: object, **kwargs: object) -> object:
            left[0] -= 1
            if left[0] >= 0:
                raise StorageError("checkpoint of round 2 could not be written (No space left on device)")
            return real(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(checkpointer_module, "write_checkpoint", write)
        with capture_logs() as reported:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(checkpointer(host, donors.fetch).run, host.clock, host.offload)
                await commit_and_report(host, chain, donors, 2, 10)
                await wait_for(lambda: newest_index(host) == 2)
                nursery.cancel_scope.cancel()
        assert [entry["log_level"] for entry in reported if entry["event"] == "checkpoint_failed"] == levels


async def _with_checkpoints(host: HostWorld, *indices: int) -> Donors:
    chain, donors = await start(host), Donors()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(checkpointer(host, donors.fetch).run, host.clock, host.offload)
        for index in indices:
            await commit_and_report(host, chain, donors, 2, 10)
            await wait_for(lambda index=index: newest_index(host) == index)  # type: ignore[misc]
        nursery.cancel_scope.cancel()
    return donors


async def test_a_checkpoint_without_a_ledger_row_is_found_again_and_one_without_a_folder_is_forgotten(
    tmp_path: Path, autojump_clock: object
) -> None:
    with open_host(tmp_path) as host:
        donors = await _with_checkpoints(host, 2, 4)
        first, second = host.tracker.checkpoints
        host.ledger.drop_checkpoint(second.commit)
        shutil.rmtree(tmp_path / "checkpoints" / first.path)
    with open_host(tmp_path) as host:
        await host.tracker.restore()
        await checkpointer(host, donors.fetch).recover(host.offload)
        assert list(host.tracker.checkpoints) == list(host.ledger.checkpoints()) == [second]


async def test_only_whole_checkpoints_of_this_run_are_found_again(tmp_path: Path, autojump_clock: object) -> None:
    with open_host(tmp_path) as host:
        donors = await _with_checkpoints(host, 2, 4)
        one, two = host.tracker.checkpoints
        folder = tmp_path / "checkpoints"
        for row in (one, two):
            host.ledger.drop_checkpoint(row.commit)
        os.truncate(folder / one.path / f"{UNIT}.safetensors", 100)
        shutil.copytree(folder / two.path, folder / "00000099-0123456789abcdef")  # under a name that is not its own
        await host.tracker.refresh_checkpoints()
        await checkpointer(host, donors.fetch).recover(host.offload)
        assert list(host.ledger.checkpoints()) == [two]
        assert (folder / one.path).exists()  # whatever it is, it is not ours to delete
        assert unlisted_checkpoints(folder, [], "ab" * 32) == []


async def test_a_pruning_that_was_cut_short_is_finished_at_the_next_start(
    tmp_path: Path, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_host(tmp_path) as host:
        with monkeypatch.context() as cut:
            cut.setattr(checkpointer_module, "surplus", lambda *_: [])
            donors = await _with_checkpoints(host, 2, 4, 6, 8)
        assert len(host.tracker.checkpoints) == 4
    with open_host(tmp_path) as host:
        await host.tracker.restore()
        await checkpointer(host, donors.fetch).recover(host.offload)
        assert [row.index for row in host.tracker.checkpoints] == [2, 6, 8]
        assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {
            r.path for r in host.tracker.checkpoints
        }
