"""Each family as transformers has it: its checkpoints come in with the same logits, and go out with the same logits and texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from averaging.models.family import family_of, layout_of
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.checkpoints.weights_import import read_weights
from peer.models.decode_text import sample_tokens
from peer.models.decoder import Decoder, load_flat
from peer.models.sampling import Sampling
from peer.training.local_training import LocalTrainer
from protocol.errors import ConfigError
from protocol.tensors.model_config import ModelConfig, model_schema
from protocol.tensors.model_families import parse_model
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of
from tests.peer.training_world import training_plan

CONTEXT = 16

_SIZES = {
    "vocab_size": 257,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 256,
    "eos_token_id": 256,
}

_LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 50.0}
_LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 50.0}


@dataclass(frozen=True)
class Theirs:
    """A model that transformers makes: of a kind, with changes of its config, in a type, in one file or several."""

    model_type: str
    changes: MappingProxyType[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    dtype: torch.dtype = torch.float32
    is_sharded: bool = False
    seed: int = 1


def theirs(
    model_type: str, dtype: torch.dtype = torch.float32, *, sharded: bool = False, seed: int = 1, **changes: Any
) -> Theirs:
    return Theirs(model_type, MappingProxyType(changes), dtype, sharded, seed)


MODELS = {
    "llama 2, sharded": theirs("llama", sharded=True),
    "llama 3, tied, one key-value head": theirs(
        "llama",
        torch.bfloat16,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        rope_parameters={**_LLAMA3, "original_max_position_embeddings": 8},
    ),
    "llama with wide heads, linear": theirs("llama", head_dim=10, rope_parameters=_LINEAR, seed=2),
    "smollm, five heads": theirs(
        "llama", hidden_size=20, num_attention_heads=5, num_key_value_heads=5, tie_word_embeddings=True
    ),
    "mistral with a window": theirs("mistral", torch.float16, sliding_window=5, num_key_value_heads=1),
    "mistral nemo": theirs("mistral", sliding_window=None, head_dim=4, seed=2),
    "qwen 2, tied": theirs("qwen2", tie_word_embeddings=True),
    "qwen 2, yarn, sharded": theirs("qwen2", rope_parameters=_YARN, num_key_value_heads=1, sharded=True, seed=2),
    "qwen 3, tied": theirs("qwen3", torch.bfloat16, head_dim=6, tie_word_embeddings=True),
    "qwen 3, sharded": theirs("qwen3", head_dim=12, num_key_value_heads=1, sharded=True, seed=2),
    "olmo 2": theirs("olmo2", rms_norm_eps=1e-6),
    "olmo 2, grouped, tied": theirs("olmo2", num_key_value_heads=1, tie_word_embeddings=True, seed=2),
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def saved(folder: Path, made: Theirs) -> Any:
    """The model, in float32, as its checkpoint in `folder` has it."""
    torch.manual_seed(made.seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(made.model_type, **{**_SIZES, **made.changes}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_scale = name.endswith("norm.weight") or "layernorm" in name
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if is_scale else 0.0))
    model.to(made.dtype).save_pretrained(folder, max_shard_size="20KB" if made.is_sharded else "1GB")
    assert (folder / "model.safetensors.index.json").exists() == made.is_sharded
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def config_of(folder: Path) -> ModelConfig:
    file = folder / "config.json"
    found = json.loads(file.read_text())
    family, layout = family_of(file, found)
    return parse_model({"family": family, "context_tokens": CONTEXT, **layout.model_values(file, found)})


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(257, (2, CONTEXT), generator=torch.Generator().manual_seed(seed))


def own_logits(config: ModelConfig, flat_N: torch.Tensor, tokens_BT: torch.Tensor) -> torch.Tensor:
    model = Decoder(config)
    load_flat(model, model_schema(config), flat_N)
    with torch.no_grad():
        return model(tokens_BT)


def their_logits(model: Any, tokens_BT: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(tokens_BT).logits
    return found


@pytest.mark.parametrize("made", MODELS.values(), ids=MODELS)
def test_a_checkpoint_of_transformers_is_trained_and_goes_back_with_the_same_logits_and_text(
    tmp_path: Path, made: Theirs
) -> None:
    first = saved(tmp_path / "theirs", made)
    config, tokens_BT = config_of(tmp_path / "theirs"), tokens(made.seed)
    assert layout_of(config).model_type == made.model_type
    start_N = read_weights(tmp_path / "theirs", config)
    expected = their_logits(first, tokens_BT)
    assert expected.std() > 0.3
    torch.testing.assert_close(own_logits(config, start_N, tokens_BT), expected, rtol=1e-5, atol=1e-5)

    trainer = LocalTrainer(training_plan(tmp_path, model=config))
    trainer.load(start_N, 0)
    for _ in range(10):
        trainer.step()
    trained_N = trainer.theta().clone()
    assert not torch.allclose(trained_N, start_N, atol=1e-3)
    export_checkpoint(checkpoint_of(tmp_path, config, anchor_N=trained_N), tmp_path / "out")
    back, reported = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(reported.values())
    assert back.config.architectures == first.config.architectures
    found = their_logits(back, tokens_BT)
    torch.testing.assert_close(found, own_logits(config, trained_N, tokens_BT), rtol=1e-5, atol=1e-5)

    prompt = tokens_BT[0, :7].tolist()
    own = list(sample_tokens(config, trained_N, prompt=prompt, sampling=Sampling(8, temperature=0.0)))
    text = back.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=8, max_length=None)[
        0, len(prompt) :
    ].tolist()
    assert own == text[: text.index(256)] if 256 in text else text


_LLAMA32 = {**_LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192}

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-2-7b": (
        {
            "model_type": "llama",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        }
        | {"intermediate_size": 11008, "max_position_embeddings": 4096, "pretraining_tp": 1, "rope_scaling": None},
        6_738_415_616,
    ),
    "Llama-3.2-1B": (
        {
            "model_type": "llama",
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
        }
        | {"num_key_value_heads": 8, "intermediate_size": 8192, "max_position_embeddings": 131072, "head_dim": 64}
        | {"rope_theta": 500000.0, "rope_scaling": {**_LLAMA32, "rope_theta": 500000.0}, "tie_word_embeddings": True},
        1_235_814_400,
    ),
    "SmolLM2-135M": (
        {
            "model_type": "llama",
            "vocab_size": 49152,
            "hidden_size": 576,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
        }
        | {"num_key_value_heads": 3, "intermediate_size": 1536, "rope_interleaved": False, "tie_word_embeddings": True},
        134_515_008,
    ),
    "Mistral-7B-v0.1": (
        {
            "model_type": "mistral",
            "vocab_size": 32000,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        }
        | {"num_key_value_heads": 8, "intermediate_size": 14336, "sliding_window": 4096, "rope_theta": 10000.0},
        7_241_732_096,
    ),
    "Qwen2.5-0.5B": (
        {
            "model_type": "qwen2",
            "vocab_size": 151936,
            "hidden_size": 896,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
        }
        | {"num_key_value_heads": 2, "intermediate_size": 4864, "use_mrope": False, "use_sliding_window": False}
        | {"sliding_window": 32768, "max_window_layers": 24, "rope_theta": 1000000.0, "tie_word_embeddings": True},
        494_032_768,
    ),
    "Qwen3-0.6B": (
        {
            "model_type": "qwen3",
            "vocab_size": 151936,
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
        }
        | {"num_key_value_heads": 8, "intermediate_size": 3072, "head_dim": 128, "attention_bias": False}
        | {"sliding_window": None, "use_sliding_window": False, "rope_scaling": None, "tie_word_embeddings": True},
        596_049_920,
    ),
    "OLMo-2-1124-7B": (
        {
            "model_type": "olmo2",
            "vocab_size": 100352,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        }
        | {"num_key_value_heads": 32, "intermediate_size": 11008, "attention_bias": False, "rope_theta": 500000},
        7_298_617_344,
    ),
}
"""Numbers in the config.json of published models, and how many values their weights have."""


@pytest.mark.parametrize(("found", "num_values"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_models_have_as_many_values_as_their_weights(found: dict[str, Any], num_values: int) -> None:
    file = Path("config.json")
    family, layout = family_of(file, found)
    config = parse_model({"family": family, "context_tokens": CONTEXT, **layout.model_values(file, found)})
    assert model_schema(config).num_elements == num_values
    layout.check_config_json(file, found, config)


def test_both_names_of_a_scaling_may_stand_in_one_file() -> None:
    found, _ = PUBLISHED["Llama-3.2-1B"]
    older = {"type" if key == "rope_type" else key: value for key, value in found["rope_scaling"].items()}
    values = family_of(Path("config.json"), found)[1].model_values(
        Path("config.json"), {**found, "rope_parameters": found["rope_scaling"], "rope_scaling": older}
    )
    assert (values["rope_scaling"], values["rope_factor"], values["rope_original_tokens"]) == ("llama3", 32.0, 8192)


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        (
            "Qwen2.5-0.5B",
            {"use_sliding_window": True},
            "use_sliding_window is true; expected false; family mistral has it",
        ),
        ("Qwen3-0.6B", {"attention_bias": True}, "attention_bias is true; expected false; no family has another"),
        ("OLMo-2-1124-7B", {"hidden_act": "gelu"}, 'hidden_act is "gelu"; expected "silu"; no family has another'),
        ("Mistral-7B-v0.1", {"sliding_window": "4096"}, 'sliding_window is "4096"; expected a number'),
        (
            "Llama-2-7b",
            {"rope_scaling": {"type": "longrope"}},
            "rope_type is 'longrope'; expected one of default, linear, ",
        ),
    ],
)
def test_what_a_family_has_not_is_named_with_those_that_have_it(name: str, changes: dict[str, Any], found: str) -> None:
    values = {**PUBLISHED[name][0], **changes}
    file = Path("config.json")
    with pytest.raises(ConfigError) as raised:
        family_of(file, values)[1].model_values(file, values)
    assert found in raised.value.one_line()


_OWN_LLAMA3 = {**_LLAMA3, "original_max_position_embeddings": 8}
_WITHOUT_ORIGINAL = {key: value for key, value in _LLAMA3.items() if key != "rope_theta"}
GONE = "gone"

CHANGES: list[dict[str, Any]] = [
    *({"num_key_value_heads": value} for value in (3, 1, GONE)),
    *({"head_dim": value} for value in (4, GONE)),
    *({"rms_norm_eps": value} for value in (1e-4, GONE)),
    *({"tie_word_embeddings": value} for value in (True, GONE)),
    *({"max_position_embeddings": value} for value in (64, GONE)),
    *({"sliding_window": value} for value in (5, None, GONE)),
    {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
    {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5},
    *({"rope_theta": value} for value in (500.0, 500, GONE)),
    {"rope_theta": 500.0, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    {"rope_theta": 500.0, "rope_parameters": _WITHOUT_ORIGINAL},
    {"rope_parameters": {"rope_theta": 500.0}},
    {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 500.0}}},
    {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta}
            for kind, theta in (("full_attention", 500.0), ("sliding_attention", 50.0))
        }
    },
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_scaling": {"type": "dynamic", "rope_type": "linear", "factor": 2.0}},
    {"rope_scaling": {"factor": 2.0}},
    {"rope_scaling": {"rope_type": None, "factor": 2.0}},
    {"rope_scaling": _OWN_LLAMA3, "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    *({"rope_scaling": scaling} for scaling in (None, {}, [], "linear", _WITHOUT_ORIGINAL, _OWN_LLAMA3, _YARN)),
    *(
        {"rope_scaling": scaling, "original_max_position_embeddings": original}
        for scaling in (_WITHOUT_ORIGINAL, _OWN_LLAMA3, _YARN)
        for original in (8, 16, CONTEXT)
    ),
    *({place: {**_YARN, "truncate": False}} for place in ("rope_scaling", "rope_parameters")),
    {"partial_rotary_factor": 0.5},
]


def _as_transformers_reads(folder: Path) -> dict[str, object] | None:
    """The values of [model]; None where transformers refuses the file, or cannot build the positions that it names."""
    try:
        found = AutoConfig.from_pretrained(folder)
        rope = found.rope_parameters
        kind = rope["rope_type"]
        if kind != "default":
            ROPE_INIT_FUNCTIONS[kind](found, torch.device("cpu"))
    except Exception:  # noqa: BLE001 - whatever its validation raises
        return None
    scaled = {"rope_factor": rope["factor"]} if kind != "default" else {}
    if kind in ("llama3", "yarn"):
        scaled["rope_original_tokens"] = rope["original_max_position_embeddings"]
    windows = set(found.layer_types) == {"sliding_attention"} if getattr(found, "layer_types", None) else None
    window = getattr(found, "sliding_window", None) if windows is not False else None
    return scaled | {
        "num_kv_heads": found.num_key_value_heads,
        "head_dim": getattr(found, "head_dim", None) or found.hidden_size // found.num_attention_heads,
        "norm_eps": found.rms_norm_eps,
        "is_tied": found.tie_word_embeddings,
        "max_position_tokens": found.max_position_embeddings,
        "rope_theta": rope["rope_theta"],
        "rope_scaling": "none" if kind == "default" else kind,
        **({"window_tokens": window} if found.model_type == "mistral" else {}),
    }


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "olmo2"])
def test_a_config_whose_places_may_differ_is_read_as_transformers_reads_it_or_refused(
    tmp_path: Path, model_type: str
) -> None:
    file, num_read = tmp_path / "config.json", 0
    for change in CHANGES:
        found = {"model_type": model_type, **_SIZES, **change}
        found = {key: value for key, value in found.items() if value != GONE}
        file.write_text(json.dumps(found))
        try:
            own = family_of(file, found)[1].model_values(file, found)
        except ConfigError:
            continue
        expected = _as_transformers_reads(tmp_path)
        if expected is not None:
            num_read += 1
            assert {key: own[key] for key in expected} == expected, change
    assert num_read > len(CHANGES) // 2
