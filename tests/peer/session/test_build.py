from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from averaging.codecs import codec_by_name
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.head_vector import HeadVector, Mover, UnitMove
from averaging.rounds.lineage.retention import update_bytes
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.state.start_state import start_root
from averaging.state.state import STATE_BYTES_PER_VALUE, state_root
from averaging.storage.file_storage import FileStorage
from peer.membership.incarnation import take_incarnation
from peer.session.build import open_chains, replay_at_most, unit_round_target
from peer.session.damaged_logs import lost_index, set_aside
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import encode_body
from protocol.rounds.schedule.stagger import UNSTAGGERED
from protocol.run.manifest import RunManifest, default_run_toml, parse_run_config
from protocol.tensors.tensor_schema import ChunkGrid
from tests.protocol.run.test_experts_section import expert_toml


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
MANIFEST = RunManifest(
    config=parse_run_config(expert_toml()),
    dataset_id="ab" * 32,
    dataset_tokens=1000,
    heldout_tokens=100,
    zlib_bits_per_byte=2.0,
    pairs_nats_per_byte=2.4,
    host_public_key="ef" * 32,
    ca_certificate_sha256="cd" * 32,
)


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
