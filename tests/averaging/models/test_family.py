"""Every family keeps what the house asks of one: give a new family its numbers in SMALL, and all of this is checked of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.family import blocks_of, layout_of, run_layers
from peer.models.decoder import Decoder, load_flat, parameters_in_order
from peer.models.stage_model import StageDecoder
from peer.training.local_training import LocalTrainer
from protocol.errors import ConfigError
from protocol.tensors.model_config import ModelConfig, model_parts, model_schema
from protocol.tensors.model_families import FAMILIES, parse_model
from protocol.tensors.stage_schema import StageMap, stage_schema
from tests.at_once import stage_units
from tests.peer.training_world import training_plan

_SIZES = {"dim": 16, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 24, "context_tokens": 16}

SMALL: dict[str, dict[str, object]] = {
    "llama": _SIZES,
    "mistral": {**_SIZES, "window_tokens": 12},
    "olmo2": _SIZES,
    "qwen2": _SIZES,
    "qwen3": {**_SIZES, "head_dim": 6},
}
"""Numbers of a small model, of each family."""

TOKENS_BT = torch.randint(257, (2, 16), generator=torch.Generator().manual_seed(5))


def small(family: str, *, is_tied: bool = False) -> ModelConfig:
    return parse_model({"family": family, **SMALL[family], "is_tied": is_tied})


def model(config: ModelConfig) -> Decoder:
    """With first values, ten times as large: so that a token's neighbours matter."""
    made, schema = Decoder(config), model_schema(config)
    load_flat(made, schema, genesis_anchor(schema, 5) * 10)
    return made


def test_every_family_is_tested() -> None:
    assert set(SMALL) == set(FAMILIES)


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_blocks_have_exactly_the_tensors_that_the_config_lists(family: str, is_tied: bool) -> None:
    config = small(family, is_tied=is_tied)
    assert parameters_in_order(Decoder(config), model_schema(config))
    assert len(model_parts(config).layers) == config.num_layers


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_alike(family: str) -> None:
    first, *others = ([spec.shape for spec in layer] for layer in model_parts(small(family)).layers)
    assert all(other == first for other in others)


@pytest.mark.parametrize("family", FAMILIES)
def test_first_values_are_ones_for_norms_zeros_for_biases_and_noise_for_matrices(family: str) -> None:
    for spec in small(family).tensors():
        if len(spec.shape) >= 2:
            assert spec.start in ("noise", "residual"), spec.name
        else:
            assert spec.start == ("zeros" if spec.name.endswith("bias") else "ones"), spec.name


@pytest.mark.parametrize("family", FAMILIES)
def test_two_matrices_of_each_layer_write_into_the_stream(family: str) -> None:
    for layer in model_parts(small(family)).layers:
        assert sum(spec.start == "residual" for spec in layer) == 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_later_token_never_changes_an_earlier_prediction(family: str) -> None:
    made, changed_BT = model(small(family)), TOKENS_BT.clone()
    changed_BT[:, 7] = 200
    with torch.no_grad():
        first, second = made(TOKENS_BT), made(changed_BT)
    torch.testing.assert_close(first[:, :7], second[:, :7])
    assert not torch.allclose(first[:, 7:], second[:, 7:])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_token_elsewhere_is_told_apart(family: str) -> None:
    same_BT = torch.full((1, 16), 65)
    same_BT[0, 0] = 66
    with torch.no_grad():
        logits = model(small(family))(same_BT)
    assert not torch.allclose(logits[0, 5], logits[0, 12], atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_one_after_another_give_the_models_logits_to_the_bit(family: str) -> None:
    config = small(family)
    stages, moved = StageMap(config, (1, 2, 0)), TOKENS_BT
    flat_N = genesis_anchor(model_schema(config), 5) * 10
    for stage, (begin, stop) in enumerate(stage_units(stages).spans):
        part = StageDecoder(stages, stage)
        load_flat(part, stage_schema(stages, stage), flat_N[begin:stop])
        moved = part(moved)
    assert torch.equal(moved, model(config)(TOKENS_BT))


@pytest.mark.parametrize("family", FAMILIES)
def test_all_that_a_layer_adds_passes_the_dropout(family: str) -> None:
    config = small(family)
    blocks, x_BTD = blocks_of(config), torch.randn(2, 16, config.dim)
    layers = [blocks.layer(config, number) for number in range(config.num_layers)]
    assert torch.equal(run_layers(layers, x_BTD, blocks.table(config), torch.zeros_like), x_BTD)


@pytest.mark.parametrize("family", FAMILIES)
def test_planned_memory_of_a_layer_is_what_its_backward_pass_keeps(family: str) -> None:
    config = small(family)
    blocks = blocks_of(config)
    layer, table = blocks.layer(config, 0), blocks.table(config)
    x_BTD = torch.randn(2, 16, config.dim, requires_grad=True)
    known = {parameter.data_ptr() for parameter in layer.parameters()} | {table.data_ptr()}
    kept: dict[tuple[int, int], int] = {}

    def keep(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in known:
            kept[(storage.data_ptr(), storage.nbytes())] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        layer(x_BTD, table)
    measured = sum(kept.values()) / 4 / TOKENS_BT.numel()
    assert measured <= config.layer_kept_values <= 1.3 * measured


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_layout_has_a_name_for_each_tensor_and_takes_its_own_config_json(family: str, is_tied: bool) -> None:
    config = small(family, is_tied=is_tied)
    layout = layout_of(config)
    names = [layout.name(spec.name) for spec in config.tensors()]
    assert len(set(names)) == len(names)
    layout.check_config_json(Path("config.json"), layout.config_json(config, 256), config)
    other = config.model_copy(update={"num_layers": config.num_layers + 1})
    with pytest.raises(ConfigError, match=r"model\.num_layers"):
        layout.check_config_json(Path("config.json"), layout.config_json(other), config)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_training_process_lowers_the_loss_of_a_model_of_the_family(family: str, tmp_path: Path) -> None:
    trainer = LocalTrainer(training_plan(tmp_path, model=small(family)))
    anchor_N = genesis_anchor(model_schema(small(family)), 1)
    trainer.load(anchor_N, 0)
    before = trainer.evaluate(anchor_N)
    for _ in range(12):
        trainer.step()
    assert trainer.evaluate(trainer.theta()) < before - 0.5
