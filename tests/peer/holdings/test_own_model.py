"""A volunteer's own folder holds the model: it is read without the network, checked, and nothing there is changed."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch
import trio
from structlog.testing import capture_logs

from averaging.arithmetic.genesis import genesis_anchor
from averaging.host.log_words import warning_sentence
from averaging.network.seams.offload import ThreadOffload
from averaging.state.generations import Generations
from averaging.state.state import UnitState, state_root
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from peer.holdings.own_model import read_model
from peer.membership.saved_membership import SavedMembership, run_folder, save_membership
from protocol.errors import ConfigError, StorageError
from protocol.ids import CommitId, Root
from protocol.run.manifest import RunManifest, parse_run_config, sign_manifest
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema
from tests.coordinator.chain_world import HOST, Chain
from tests.coordinator.host_world import RUN_TOML
from tests.peer.membership.test_joining import DATASET
from tests.protocol.run.made_manifest import manifest_of


def tiny_run(toml: str = RUN_TOML) -> RunManifest:
    return manifest_of(
        parse_run_config(toml),
        dataset_id=DATASET.model_copy(update={"tokenizer": None}).dataset_id,
        host_public_key=HOST.public_key.hex(),
    )


def keep_run(state_dir: Path, manifest: RunManifest) -> Path:
    """The folder of a run that was joined, without any state."""
    saved = SavedMembership.model_construct(
        addresses=("192.0.2.7:1",), ca_certificate_der=b"ca", tls_key_pem=b"tls key", credential=b"credential",
        manifest=sign_manifest(manifest, HOST), start_record=b"", coordinator_peer_id="p", bootstrap=(),
        dataset=DATASET.model_copy(update={"tokenizer": None}).canonical_bytes(), peer_addresses=(),
    )  # fmt: skip
    folder = run_folder(state_dir, manifest.run_id)
    save_membership(folder, saved)
    return folder


def state_at(schema: TensorSchema, index: int, commit: bytes = b"") -> UnitState:
    anchor_N = genesis_anchor(schema, index)
    head = CommitId(commit or bytes([index]) * 32)
    return UnitState(schema.unit, head, index, 100 * index, anchor_N, torch.zeros_like(anchor_N))


def write_state(folder: Path, manifest: RunManifest, schema: TensorSchema, state: UnitState) -> Root:
    """As the daemon writes a generation."""
    grid, offload = ChunkGrid(schema.num_elements, manifest.config.chunk_elements), ThreadOffload()
    root = state_root(state, grid)
    trio.run(Generations(FileStorage(folder / schema.unit, offload), grid, offload).write, state, root)
    return root


def _hashes(folder: Path) -> dict[Path, str]:
    return {path: sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def test_the_newest_good_state_is_the_model_and_the_folder_stays_as_it_was(tmp_path: Path) -> None:
    manifest = tiny_run()
    (schema,) = manifest.unit_schemas().values()
    folder = keep_run(tmp_path, manifest)
    write_state(folder, manifest, schema, state_at(schema, 4))
    root = write_state(folder, manifest, schema, state_at(schema, 5))
    before = _hashes(tmp_path)
    model = read_model(folder)
    (unit,) = model.units
    assert (unit.state.index, unit.root, model.tokenizer) == (5, root, None)
    assert torch.equal(unit.state.anchor_N, genesis_anchor(schema, 5))
    assert model.proof == "as this peer computed it"
    newest = max((folder / schema.unit / "generations").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1] + b"\x07")
    before[newest] = sha256(newest.read_bytes()).hexdigest()
    assert read_model(folder).units[0].state.index == 4
    assert _hashes(tmp_path) == before


def test_a_state_of_another_root_than_a_later_round_attests_is_passed_over(tmp_path: Path) -> None:
    manifest = tiny_run()
    (schema,) = manifest.unit_schemas().values()
    folder, chain, offload = keep_run(tmp_path, manifest), Chain(), ThreadOffload()
    first = chain.commit()
    good = state_at(schema, 1, first)
    attested = write_state(folder, manifest, schema, good)
    chain.commit(attested=(first, attested))
    log = UnitLog(FileStorage(folder / schema.unit, offload))
    trio.run(log.log_certificate, first, chain.certificates[-1])
    model = read_model(folder)
    assert (model.units[0].root, model.proof) == (attested, "as a later round attests it")
    write_state(folder, manifest, schema, replace(good, anchor_N=good.anchor_N + 1))
    with pytest.raises(StorageError, match=r"another root than the run attests.*potluck checkpoint fetch"):
        read_model(folder)


def test_a_folder_without_a_state_or_with_a_part_of_the_model_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run was joined in"):
        read_model(tmp_path)
    toml = RUN_TOML.replace("[model]", 'shards = "expert"\n[model]') + "[experts]\nnum_experts = 2\nffn_dim = 8\n"
    manifest = tiny_run(toml)
    folder = keep_run(tmp_path, manifest)
    with pytest.raises(StorageError, match=r"no state of the run is in .* yet.*potluck checkpoint fetch"):
        read_model(folder)
    trunk = next(iter(manifest.unit_schemas().values()))
    write_state(folder, manifest, trunk, state_at(trunk, 3))
    with pytest.raises(ConfigError, match=r"holds only trunk of the model.*potluck checkpoint fetch"):
        read_model(folder)


def test_a_model_that_is_older_than_the_newest_round_here_says_so(tmp_path: Path) -> None:
    manifest = tiny_run()
    (schema,) = manifest.unit_schemas().values()
    folder, chain = keep_run(tmp_path, manifest), Chain()
    write_state(folder, manifest, schema, state_at(schema, 1, chain.commit()))
    log = UnitLog(FileStorage(folder / schema.unit, ThreadOffload()))
    for _ in range(2):
        parent = chain.head[0]
        chain.commit()
        trio.run(log.log_certificate, parent, chain.certificates[-1])
    with capture_logs() as logged:
        assert read_model(folder).units[0].state.index == 1
    assert [warning_sentence(event) for event in logged] == [
        "warning: the model is that of round 1; the results of later rounds, up to round 3, are not all here"
    ]
