"""One mixture of an expert run's checkpoints: what other programs load gives the peers' own logits, and nothing unfit is merged."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from averaging.arithmetic.genesis import genesis_anchor
from averaging.data.packing.expert_shards import expert_shards
from averaging.data.packing.packing import Packing, pack
from averaging.data.shards import DatasetManifest
from averaging.data.tokenizer import ByteTokenizer
from averaging.models.llama.config import LlamaConfig
from averaging.state.state import UnitState, state_root
from coordinator.checkpoints.checkpoints import CheckpointContent, UnitContent, write_checkpoint
from coordinator.experts.merge_inputs import ExpertSample, merge_checkpoints, read_parts, write_merged
from coordinator.run.hosted_runs import MANIFEST_FILE
from peer.models.merging import merge_with_text
from peer.models.mixture import MixtureDecoder
from potluck import app
from protocol.errors import ConfigError, StorageError
from protocol.identity.identity import Identity
from protocol.ids import CommitId
from protocol.run.manifest import default_run_toml, parse_run_config, sign_manifest
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.tensor_schema import ChunkGrid
from tests.averaging.data.packing.test_expert_shards import ROUTING, TEXTS
from tests.protocol.run.made_manifest import manifest_of

DECODER = LlamaConfig(dim=16, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=24, context_tokens=16)
MIXTURE = MixtureConfig(num_experts=2, ffn_dim=12)
HOST = Identity(b"h" * 32)
ALL_FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def _content(run_id: str, seed: int = 5, trained: tuple[int, ...] = (0, 1)) -> CheckpointContent:
    """Units whose weights are large enough that every part of the model matters."""
    layout, contents = held_units(DECODER, MIXTURE, range(2)), []
    for place, schema in enumerate(layout.schemas):
        index = 3 if place == 0 or place - 1 in trained else 0
        anchor_N = genesis_anchor(schema, seed if place else 5, layout.whole) * 10.0
        head = CommitId(bytes([place + 1]) * 32)
        state = UnitState(schema.unit, head, index, 600, anchor_N, torch.zeros_like(anchor_N))
        grid = ChunkGrid(schema.num_elements, 1024)
        contents.append(UnitContent(schema, grid, state, state_root(state, grid)))
    return CheckpointContent(
        "potluck run", run_id, layout.whole, contents[0].grid, DECODER.model_dump(), contents[0].state,
        contents[0].root, units=tuple(contents), mixture=MIXTURE,
    )  # fmt: skip


def _checkpoint(state_dir: Path, content: CheckpointContent) -> Path:
    folder = state_dir / "checkpoints"
    return folder / write_checkpoint(folder, content, now_unix_s=7).path


def _host(state_dir: Path, seed: int = 1, text: str = "") -> tuple[str, DatasetManifest]:
    """The folder of a run's host, as far as a merge looks; the run's id and its data. `text` is its run.toml, where that matters."""
    dataset = pack(TEXTS, ByteTokenizer(), state_dir / "data", Packing(4096, "text", "none", routing=ROUTING))
    config = parse_run_config(text or default_run_toml().replace("seed = 1", f"seed = {seed}"))
    manifest = manifest_of(config, dataset_id=dataset.dataset_id, host_public_key=HOST.public_key.hex())
    (state_dir / MANIFEST_FILE).write_bytes(sign_manifest(manifest, HOST))
    return manifest.run_id.hex(), dataset


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    return _host(tmp_path)[0]


@pytest.fixture
def checkpoint(tmp_path: Path, run_id: str) -> Path:
    return _checkpoint(tmp_path, _content(run_id))


@pytest.mark.parametrize("tune_steps", [0, 3])
def test_transformers_finds_the_logits_of_the_mixture_that_was_merged(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tune_steps: int
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    parts = read_parts([checkpoint])
    text = ExpertSample(parts)
    merged = merge_with_text(DECODER, MIXTURE, parts.trunk_N, parts.experts, text, tune_steps)
    assert ("tuned for 3 steps" in merged.description) == bool(tune_steps)
    assert set(write_merged(parts, merged.tensors, tmp_path / "out").files) == ALL_FILES
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values())
    own = MixtureDecoder(DECODER, MIXTURE, [0, 1], is_merged=True)
    own.load_state_dict(merged.tensors, strict=False)
    tokens_BT = text.windows(0, 9, 3)[:, :12]
    with torch.no_grad():
        expected = own(tokens_BT)
        assert expected.std() > 0.5
        torch.testing.assert_close(loaded(tokens_BT).logits, expected, rtol=1e-5, atol=1e-5)


def test_the_command_says_what_it_merged_and_leaves_no_half_of_it(
    checkpoint: Path, tmp_path: Path, run_id: str
) -> None:
    reported = merge_checkpoints([checkpoint], tmp_path / "out", merge_with_text, tune_steps=2)
    assert reported.startswith("verified and merged with routers tuned for 2 steps to ")
    assert "round 3 of potluck run, 2 experts" in reported
    assert re.search(
        r"\nheld-out text: \d+\.\d{3} nats a token, \d+\.\d{3} with .* own expert; \d+% of its windows go", reported
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == ALL_FILES
    with pytest.raises(ConfigError, match="a new or an empty folder"):
        merge_checkpoints([checkpoint], tmp_path / "out", merge_with_text)
    alone = _checkpoint(tmp_path / "alone", _content(run_id, trained=(1,)))
    reported = merge_checkpoints([alone], tmp_path / "one", merge_with_text, state_dir=tmp_path, tune_steps=0)
    assert "merged without experts 0, which were never trained, with routers made" in reported
    with pytest.raises(ConfigError, match="no run is hosted from"):
        merge_checkpoints([alone], tmp_path / "none", merge_with_text)
    assert not (tmp_path / "none").exists()


def test_an_expert_is_left_out_and_all_that_is_not_its_own_stays_bit_equal(checkpoint: Path, tmp_path: Path) -> None:
    merge_checkpoints([checkpoint], tmp_path / "whole", merge_with_text, tune_steps=2)
    reported = merge_checkpoints([checkpoint], tmp_path / "less", merge_with_text, tune_steps=2, without=[0])
    assert reported.startswith("verified and merged without experts 0, as asked, with routers tuned for 2 steps")
    assert "round 3 of potluck run, 1 experts" in reported
    assert json.loads((tmp_path / "less" / "config.json").read_text())["num_local_experts"] == 1
    whole, less = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "less"))
    assert set(less) == set(whole)
    for name, tensor in whole.items():
        assert torch.equal(less[name], tensor[1:] if ".block_sparse_moe." in name else tensor), name


def test_documents_never_sent_to_an_expert_have_the_same_logits_without_it(checkpoint: Path) -> None:
    parts = read_parts([checkpoint])
    text = ExpertSample(parts)
    models = []
    for left_out in ([], [0]):
        merged = merge_with_text(DECODER, MIXTURE, parts.trunk_N, parts.experts, text, 2, left_out)
        model = MixtureDecoder(DECODER, MIXTURE, sorted(parts.without(left_out).experts), is_merged=True)
        model.load_state_dict(merged.tensors, strict=False)
        models.append(model)
    tokens_BT = torch.cat([text.windows(expert, 9, 64) for expert in range(2)])[:, :4]
    with torch.no_grad():
        (whole_BTV, chosen), less_BTV = models[0].routed(tokens_BT), models[1](tokens_BT)
    is_its_own_B = torch.stack([routed.gates(1)[..., 0].sum(1) for routed in chosen]).sum(0) > 0
    assert 0 < int(is_its_own_B.sum()) < len(tokens_BT)
    assert torch.equal(less_BTV[~is_its_own_B], whole_BTV[~is_its_own_B])
    assert not torch.equal(less_BTV[is_its_own_B], whole_BTV[is_its_own_B])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["2"], "--without 2, which these checkpoints do not have trained; expected .*: 0, 1"),
        (["-1"], "--without -1, which these checkpoints do not have"),
        (["1", "1"], "--without 1 twice; expected each expert once"),
        (["0", "1"], "--without 0, 1 of the trained experts 0, 1: 0 stay; expected at least 1, which a token passes"),
    ],
)
def test_experts_that_cannot_be_left_out_are_one_line_and_nothing_is_written(
    checkpoint: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    flags = [word for number in arguments for word in ("--without", number)]
    with pytest.raises(ConfigError, match=said) as raised:
        app(["checkpoint", "merge", str(checkpoint), str(tmp_path / "out"), *flags], standalone_mode=False)
    assert "\n" not in raised.value.one_line()
    assert not (tmp_path / "out").exists()


def test_an_expert_that_was_never_trained_cannot_be_left_out(tmp_path: Path, run_id: str) -> None:
    parts = read_parts([_checkpoint(tmp_path, _content(run_id, trained=(1,)))])
    with pytest.raises(ConfigError, match="--without 0, which these checkpoints do not have trained"):
        parts.without([0])


def test_trained_experts_of_several_checkpoints_are_taken_together_and_others_are_known(
    tmp_path: Path, run_id: str, checkpoint: Path
) -> None:
    one, other = (_checkpoint(tmp_path / str(expert), _content(run_id, trained=(expert,))) for expert in range(2))
    whole, both, alone = read_parts([checkpoint]), read_parts([one, other]), read_parts([one])
    assert all(torch.equal(both.experts[expert], whole.experts[expert]) for expert in range(2))
    assert (sorted(alone.experts), alone.missing, both.missing, whole.missing) == ([0], [1], [], [])
    assert sorted(read_parts([one, checkpoint]).experts) == [0, 1]


def test_experts_of_another_root_or_run_are_one_clear_line(checkpoint: Path, tmp_path: Path, run_id: str) -> None:
    odd = {
        "expert-0 with root .* has ": _content(run_id, seed=6),
        f"run {run_id[:8]}": _content("cd" * 32),
        "model numbers": replace(_content(run_id), model={**DECODER.model_dump(), "rope_theta": 5.0}),
    }
    for number, (said, content) in enumerate(odd.items()):
        path = _checkpoint(tmp_path / str(number), content)
        with pytest.raises(ConfigError, match=f"{said}.*expected checkpoints of one run"):
            read_parts([checkpoint, path])
        command = ["checkpoint", "merge", str(checkpoint), str(tmp_path / "out"), "--also", str(path)]
        with pytest.raises(ConfigError, match="leave one out") as raised:
            app(command, standalone_mode=False)
        assert "\n" not in raised.value.one_line()
        assert not (tmp_path / "out").exists()


def test_a_checkpoint_without_experts_or_with_too_few_is_not_merged(tmp_path: Path, run_id: str) -> None:
    plain = replace(_content(run_id), mixture=None)
    with pytest.raises(ConfigError, match=r"of a run without experts.*potluck checkpoint export"):
        read_parts([_checkpoint(tmp_path / "plain", plain)])
    with pytest.raises(ConfigError, match="0 trained experts in these checkpoints; expected at least 1"):
        read_parts([_checkpoint(tmp_path / "trunk", _content(run_id, trained=()))])


def test_weights_that_were_damaged_are_not_merged(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StorageError, match="has SHA-256"):
        read_parts([checkpoint])


def test_text_of_another_run_or_of_none_or_damaged_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    parts = read_parts([checkpoint])
    with pytest.raises(ConfigError, match=r"no run is hosted from .*nowhere.*--state-dir"):
        ExpertSample(parts, tmp_path / "nowhere")
    _host(tmp_path / "other", seed=2)
    with pytest.raises(ConfigError, match="which the checkpoint is of"):
        ExpertSample(parts, tmp_path / "other")
    _, dataset = _host(tmp_path / "mine")
    assert torch.equal(ExpertSample(parts, tmp_path / "mine").windows(1, 2, 4), ExpertSample(parts).windows(1, 2, 4))
    shard = tmp_path / "mine" / "data" / expert_shards(dataset, 1)[0].sha256
    shard.write_bytes(b"x")
    with pytest.raises(StorageError, match="is lost or damaged"):
        ExpertSample(parts, tmp_path / "mine")
    assert shard.exists()
    (tmp_path / "mine" / "data" / "dataset.json").write_bytes(b"{}")
    with pytest.raises(StorageError, match="is damaged"):
        ExpertSample(parts, tmp_path / "mine")
