from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import trio
import trio.testing

from averaging.codecs import codec_by_name
from averaging.network.seams.interfaces import KeptPart, TrainerProgress
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.head_vector import HeadVector, Mover, UnitMove
from averaging.rounds.lineage.adoption import AdoptionShift
from averaging.rounds.lineage.retention import update_bytes
from averaging.rounds.lineage.trainer_updates import TrainerUpdater
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.state.start_state import start_root
from averaging.state.state import STATE_BYTES_PER_VALUE, state_root
from averaging.storage.file_storage import FileStorage
from peer.membership.incarnation import take_incarnation
from peer.session.build import open_chains, read_anchors, replay_at_most, unit_round_target
from peer.session.damaged_logs import lost_index, set_aside
from protocol.errors import LocalProtocolError
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import encode_body
from protocol.rounds.schedule.stagger import UNSTAGGERED
from protocol.run.manifest import default_run_toml, parse_run_config
from protocol.tensors.tensor_schema import ChunkGrid
from tests.averaging.rounds.round_world import GRID, MadeCommit, Party, open_world
from tests.protocol.run.made_manifest import manifest_of
from tests.protocol.run.test_experts_section import expert_toml
from tests.virtual import InlineOffload


@pytest.mark.parametrize("codec_name", ["fp32", "int8", "int4", "top6"])
def test_up_to_that_many_missed_commits_are_fewer_bytes_than_a_state_and_the_commit_that_attests_it(
    codec_name: str,
) -> None:
    results, grid = codec_by_name(codec_name), ChunkGrid(10 * 65_536 + 77, 65_536)
    update, state = update_bytes(results, grid), STATE_BYTES_PER_VALUE * grid.num_elements
    most = replay_at_most(results, grid)
    assert most * update <= state + update < (most + 1) * update


def test_an_experts_rounds_take_its_share_of_the_trunks_tokens_from_the_first_one_on() -> None:
    config = parse_run_config(expert_toml("target_tokens = 1000"))
    units = [UnitName(name) for name in ("trunk", "expert-0", "expert-1")]
    assert unit_round_target(config, units[0], units) == (config.round_target, UNSTAGGERED)
    for expert in units[1:]:
        target, stagger = unit_round_target(config, expert, units)
        assert target.most_tokens == 500
        assert stagger.due_at(1000, 0) == 500  # as the start record says for all units
        assert stagger.due_at(500, 1) == 500
        assert stagger.next_target(500, 500, 500) == 500
    whole = parse_run_config(default_run_toml())
    target, stagger = unit_round_target(whole, UnitName("fragment-0"), [UnitName("fragment-0")])
    assert (target, stagger.num_units) == (whole.round_target, 1)


ME = PeerId("me")
MANIFEST = manifest_of(parse_run_config(expert_toml()))


def _start() -> bytes:
    model, numbers = MANIFEST.model_schema, MANIFEST.config
    units = []
    for schema in MANIFEST.units_held([0, 1]).schemas:
        grid = ChunkGrid(schema.num_elements, numbers.chunk_elements)
        root = start_root(schema, grid, numbers.run.seed, (), model)
        units.append(StartUnit(schema.unit, schema.fingerprint(), root))
    return encode_body(StartRecord(MANIFEST.run_id, tuple(units), (ME,), 100, 0))


async def test_damage_of_any_unit_is_told_at_the_start_and_its_state_written_again(tmp_path: Path) -> None:
    start, reported = _start(), list[str]()
    membership = SimpleNamespace(manifest=MANIFEST, run_id=MANIFEST.run_id)

    async def opened(experts: Sequence[int]) -> dict[UnitName, UnitChain]:
        reported.clear()
        take_incarnation(tmp_path)
        arguments = (tmp_path, membership, start, Ed25519Verifier(), ME, reported.append, (), experts)
        return {chain.tools.unit: chain for chain in await open_chains(*arguments)}  # type: ignore[arg-type]

    for chain in (await opened([0])).values():
        await chain.tools.log.log_promise(chain.head.commit, Ballot(1, ME))
        await chain.tools.generations.write(chain.state, state_root(chain.state, chain.tools.grid))
    assert not reported, "a newcomer"
    (path,) = (tmp_path / "expert-0" / "generations").iterdir()
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    await opened([0, 1])
    (sentence,) = reported
    assert sentence.startswith("restarted at round 0; nothing was lost")
    assert "; expert-0 restarted at round 0" in sentence
    assert "1 damaged generation was skipped" in sentence
    assert "expert-1" not in sentence, "taken up just now"
    assert path.read_bytes() == data
    await opened([0])
    assert reported == ["restarted at round 0; nothing was lost but steps that no round had counted"]


def _unwritten(chain: UnitChain) -> Mover:
    """A move that the unit's own log does not tell of."""
    move = UnitMove(chain.tools.unit, CommitId(b"f" * 32), (b"a certificate",))

    async def flip() -> bool:
        return False

    return Mover(move, chain.tools.log, trio.Lock(), lambda commit: True, flip)


async def test_a_unit_whose_log_was_set_aside_begins_at_the_start_and_knows_what_it_lost(tmp_path: Path) -> None:
    """A move of all units that a crash left unfinished is no beginning for its new log."""
    start, reported = _start(), list[str]()
    membership = SimpleNamespace(manifest=MANIFEST, run_id=MANIFEST.run_id)

    async def opened() -> dict[UnitName, UnitChain]:
        take_incarnation(tmp_path)
        arguments = (tmp_path, membership, start, Ed25519Verifier(), ME, reported.append, (), [0])
        return {chain.tools.unit: chain for chain in await open_chains(*arguments)}  # type: ignore[arg-type]

    chains = await opened()
    for chain in chains.values():
        for attempt in (1, 2):
            await chain.tools.log.log_promise(chain.head.commit, Ballot(attempt, ME))
        assert await lost_index(tmp_path, chain) == 0
    chain = chains[UnitName("expert-0")]
    later = replace(chain.state, index=5, head=CommitId(b"5" * 32))
    await chain.tools.generations.write(later, state_root(later, chain.tools.grid))
    await HeadVector(FileStorage(tmp_path, ThreadOffload())).move([_unwritten(chain)])
    path = tmp_path / "expert-0" / "rounds.log"
    path.write_bytes(path.read_bytes()[:20] + b"?" + path.read_bytes()[21:])
    assert len(set_aside(tmp_path)) == 1
    again = await opened()
    assert [await lost_index(tmp_path, chain) for chain in again.values()] == [0, 5]
    assert again[UnitName("expert-0")].head.index == 0
    assert reported == ["restarted at round 0; nothing was lost but steps that no round had counted"], "of the trunk"


# --- anchors that are lent while rounds go on ------------------------------------------------------------------------------------


async def _apply(party: Party, commit: MadeCommit) -> None:
    """In place, if nobody has borrowed the state."""
    await commit.write_results(party)
    begin = partial(AdoptionShift, commit.record, party.peer, None, GRID)
    await party.chain.prove(await party.chain.apply(commit.link, commit.certificate, begin))


@asynccontextmanager
async def _two_units() -> AsyncIterator[tuple[list[Party], list[MadeCommit]]]:
    """Two chains as of two units of one peer, after a first commit, and the commits of each."""
    async with open_world() as world:
        parties, made = world.parties[:2], world.commits(6)
        for party in parties:
            party.chain.held.steps_in_place = True
            await _apply(party, made[0])
        yield parties, made


def _rooms(chains: Sequence[UnitChain]) -> list[torch.Tensor]:
    return [torch.empty_like(chain.state.anchor_N) for chain in chains]


@pytest.mark.parametrize("num_units", [1, 2])
async def test_commits_while_an_evaluation_waits_make_no_second_state_and_it_is_told_that_one_came(
    autojump_clock: trio.testing.MockClock, num_units: int
) -> None:
    async with _two_units() as (parties, made):
        chains = [party.chain for party in parties[:num_units]]
        read, rooms = partial(read_anchors, chains, chains[0].head.commit), _rooms(chains)
        await read(rooms)
        assert all(torch.equal(room_N, chain.state.anchor_N) for room_N, chain in zip(rooms, chains, strict=True))
        vectors = [chain.state.anchor_N for chain in chains]
        for party in parties[:num_units]:
            await _apply(party, made[1])
        assert all(chain.state.anchor_N is old_N for chain, old_N in zip(chains, vectors, strict=True))
        with pytest.raises(LocalProtocolError, match="another commit"):
            await read(rooms)


class _Starting:
    """A trainer whose process starts when it is let. It has no theta before it loads an anchor."""

    def __init__(self) -> None:
        self.is_ready, self._lock = trio.Event(), trio.Lock()
        self.theta_N = torch.empty(0)
        self.has_theta = False

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """Its process does not die."""

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        async with self._lock:
            await self.is_ready.wait()
            self.theta_N, self.has_theta = anchor_N.clone(), True

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        async with self._lock:
            self.theta_N = self.theta_N + shift_N

    def progress(self) -> TrainerProgress:
        return TrainerProgress(0, 0, None, 0.0, 0, "starting", "", has_theta=self.has_theta)


@pytest.mark.parametrize("is_borrowed", [False, True])
@pytest.mark.parametrize("num_before", [0, 1, 3])
async def test_commits_while_the_training_process_starts_are_each_in_its_parameters_once_and_take_no_vectors(
    autojump_clock: trio.testing.MockClock, num_before: int, is_borrowed: bool
) -> None:
    async with _two_units() as (parties, made), trio.open_nursery() as nursery:
        party, trainer = parties[0], _Starting()
        vector_N, loan = party.chain.state.anchor_N, party.chain.held.lend() if is_borrowed else None
        updater = TrainerUpdater(party.peer, party.chain, trainer, InlineOffload(), lambda own: own)
        nursery.start_soon(updater.run)
        await trio.sleep(1.0)
        for number, commit in enumerate(made[1:6]):
            if number == num_before:
                assert (party.chain.state.anchor_N is vector_N) == (loan is None or not num_before)
                trainer.is_ready.set()
            await commit.write_results(party)
            begin = partial(updater.begin_shift, commit.record, None)
            applied = await party.chain.apply(commit.link, commit.certificate, begin)
            await updater.commit(commit.link, commit.record, applied, None)
            await party.chain.prove(applied)
            await trio.sleep(1.0)
        await updater.wait_adopted()
        torch.testing.assert_close(trainer.theta_N, party.chain.state.anchor_N, rtol=1e-6, atol=1e-6)
        nursery.cancel_scope.cancel()
