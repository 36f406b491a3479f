"""Rotary positions in config.json: written for old and new releases of transformers, and read as transformers reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from averaging.models.llama.config import DecoderConfig
from protocol.errors import ConfigError

_KEYS: Final = {
    "rope_factor": "factor",
    "rope_original_tokens": "original_max_position_embeddings",
    "rope_low_freq_factor": "low_freq_factor",
    "rope_high_freq_factor": "high_freq_factor",
    "rope_beta_fast": "beta_fast",
    "rope_beta_slow": "beta_slow",
    "rope_attention_factor": "attention_factor",
}
"""Keys of run.toml's [model], and of the layout's rope_parameters."""

_REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_OPTIONAL: Final[dict[str, tuple[str, ...]]] = {"yarn": ("beta_fast", "beta_slow", "attention_factor")}
_FIXED: Final[dict[str, tuple[object, ...]]] = {
    "partial_rotary_factor": (None, 1),
    "mscale": (None, 0),
    "mscale_all_dim": (None, 0),
    "truncate": (None, True),
}
"""Other keys of rope_parameters that change positions, and their values that leave them as they are here."""


def rope_json(config: DecoderConfig) -> dict[str, object]:
    """The keys of config.json. Releases of transformers before 5 read `rope_theta` and `rope_scaling`, later ones the third."""
    kind = "default" if config.rope_scaling == "none" else config.rope_scaling
    scaling: dict[str, object] = {"rope_type": kind}
    for own, key in _KEYS.items():
        if key in (*_REQUIRED[kind], *_OPTIONAL.get(kind, ())) and (value := getattr(config, own)) is not None:
            scaling[key] = value
    written: dict[str, object] = {"rope_theta": config.rope_theta}
    if kind != "default":
        written["rope_scaling"] = scaling
    return {**written, "rope_parameters": {**scaling, "rope_theta": config.rope_theta}}


def rope_values(file: Path, found: Mapping[str, object], max_position_tokens: object) -> dict[str, object]:
    """All values of [model] about rotary positions, from the contents of a config.json.

    Args:
        file: its name in errors.
        max_position_tokens: what stands for the original context where that is missing.

    Raises:
        ConfigError: positions of another kind, or with two values that releases of transformers choose from differently.
    """
    _check_places(file, found)
    theta, scaling = _rope_theta(file, found), _scaling(file, found)
    kind = scaling.get("rope_type", "default")
    if not isinstance(kind, str) or kind not in _REQUIRED:
        raise ConfigError(
            f"{file}: rope_type is {kind!r}", f"one of {', '.join(_REQUIRED)}, which all families have", _REMEDY
        )
    if kind in ("llama3", "yarn"):
        original = scaling.get(_ORIGINAL, max_position_tokens)
        if found.get(_ORIGINAL) not in (None, original):
            raise ConfigError(
                f"{file}: {_ORIGINAL} is {found[_ORIGINAL]!r}, and {original!r} of the rotary positions",
                "one value",
                "write the one that the weights were trained with into rope_parameters and rope_scaling",
            )
        scaling = {**scaling, _ORIGINAL: original}
    taken = {key: scaling.get(key) for key in (*_REQUIRED[kind], *_OPTIONAL.get(kind, ()))}
    for key, value in taken.items():
        if key in _REQUIRED[kind] or value is not None:
            check_kind(file, key, value)
    given = {own: taken[key] for own, key in _KEYS.items() if taken.get(key) is not None}
    defaults = {own: DecoderConfig.model_fields[own].default for own in _KEYS}
    return {
        "rope_theta": theta,
        "rope_scaling": "none" if kind == "default" else kind,
        **defaults,
        **given,
    }


def check_kind(file: Path, key: str, value: object) -> None:
    """Refuse a value that no model has, which run.toml could not have either.

    Raises:
        ConfigError: no number, or of tie_word_embeddings neither true nor false.
    """
    is_flag = key == "tie_word_embeddings"
    if isinstance(value, bool) != is_flag or not isinstance(value, (bool, int, float)):
        kind = "true or false" if is_flag else "a number"
        raise ConfigError(f"{file}: {key} is {json.dumps(value)[:80]}", kind, "download the checkpoint again")


_PLACES: Final = ("rope_parameters", "rope_scaling")
_ORIGINAL: Final = "original_max_position_embeddings"
_REMEDY: Final = "start from another checkpoint"


def _check_places(file: Path, found: Mapping[str, object]) -> None:
    """Refuse what is no object of numbers: some models have an object for each kind of layer."""
    for place in _PLACES:
        rope = found.get(place)
        if rope is not None and not isinstance(rope, dict):
            raise ConfigError(f"{file}: {place} is {json.dumps(rope)[:80]}", "an object or null", _REMEDY)
        nested = [key for key, value in (rope or {}).items() if isinstance(value, dict)]
        if nested:
            raise ConfigError(f"{file}: {place} has {nested[0]} with values of its own", "layers all alike", _REMEDY)


def _scaling(file: Path, found: Mapping[str, object]) -> dict[str, object]:
    """The kind of scaling and its numbers, which stand in rope_parameters, in rope_scaling, or in both alike."""
    ropes = {place: rope for place in _PLACES if isinstance(rope := found.get(place), dict) and rope}
    numbers = [
        {"rope_type": rope.get("type", "default"), **rope, "type": None, "rope_theta": None} for rope in ropes.values()
    ]  # older releases wrote "type"
    for place, rope in {"": found, **ropes}.items():
        for key, allowed in _FIXED.items():
            if rope.get(key) not in allowed:
                name = f"{place}.{key}" if place else key
                raise ConfigError(f"{file}: {name} is {rope.get(key)!r}", f"{allowed[1]!r}, in all families", _REMEDY)
    if len(numbers) == 2 and numbers[0] != numbers[1]:
        raise ConfigError(
            f"{file}: rope_parameters and rope_scaling differ", "one of both", "keep what the weights were trained with"
        )
    return numbers[0] if numbers else {}


def _rope_theta(file: Path, found: Mapping[str, object]) -> object:
    """The base of rotary positions, which stands beside the other keys, in rope_parameters, in rope_scaling, or in several."""
    thetas = {"rope_theta": found["rope_theta"]} if "rope_theta" in found else {}
    for place in _PLACES:
        rope = found.get(place)
        if isinstance(rope, dict) and "rope_theta" in rope:
            thetas[f"{place}.rope_theta"] = rope["rope_theta"]
    first = next(iter(thetas.values()), 10000.0)
    if any(theta != first for theta in thetas.values()):
        both = " and ".join(f"{key} is {theta}" for key, theta in thetas.items())
        raise ConfigError(
            f"{file}: {both}", "one value", "write the one that the weights were trained with in all places"
        )
    check_kind(file, "rope_theta", first)
    return first
