"""A section [model] is of the family that it names, and of the first one where it names none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import BaseModel, ValidationError

from averaging.models.llama.config import LlamaConfig
from protocol.errors import ConfigError, LocalProtocolError
from protocol.run.manifest import RunConfig, default_run_toml, parse_run_config
from protocol.tensors.model_families import DEFAULT_FAMILY, FAMILIES, ModelSection, config_class, parse_model

SMALL = {"dim": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 24, "context_tokens": 8}


class _Holder(BaseModel):
    model: ModelSection


def test_the_default_family_is_known() -> None:
    assert DEFAULT_FAMILY in FAMILIES


def test_a_section_without_a_family_is_the_default_and_never_says_so() -> None:
    assert parse_model(SMALL) == parse_model({**SMALL, "family": "llama"}) == LlamaConfig(**SMALL)
    assert "family" not in _Holder(model=LlamaConfig(**SMALL)).model_dump_json()


def test_a_run_that_names_the_default_family_has_the_bytes_of_one_that_names_none() -> None:
    text = default_run_toml()
    named = parse_run_config(text.replace("[model] ", '[model]\nfamily = "llama"\n'))
    assert named.model_fields_set == parse_run_config(text).model_fields_set
    assert json.dumps(named.model_dump(mode="json")) == json.dumps(parse_run_config(text).model_dump(mode="json"))


def test_a_model_survives_json_and_a_copy_of_its_holder() -> None:
    held = _Holder(model=LlamaConfig(**SMALL))
    assert _Holder.model_validate_json(held.model_dump_json()) == held
    assert _Holder.model_validate(held.model_dump()) == held


def test_an_unknown_family_is_refused_with_those_that_are_known() -> None:
    text = default_run_toml().replace("[model] ", '[model]\nfamily = "gpt9"\n')
    with pytest.raises(ConfigError) as refused:
        parse_run_config(text)
    known = " or ".join(f"'{family}'" for family in FAMILIES)
    assert refused.value.one_line().startswith(f"run.toml: model.family is 'gpt9'; expected {known}")


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"width": 3}, "model.width is not a known key"),
        ({"dim": "16"}, "model.dim is '16'"),
        ({"dim": ...}, "model.dim is missing"),
        ({"num_kv_heads": 3}, "model: 4 heads over 3 key-value heads"),
        ({"family": 3}, "model.family is 3"),
    ],
)
def test_what_is_wrong_in_the_section_is_told_with_its_place(changes: dict[str, object], reported: str) -> None:
    values = parse_run_config(default_run_toml()).model_dump()
    model = {**SMALL, "context_tokens": values["model"]["context_tokens"], **changes}
    values["model"] = {key: value for key, value in model.items() if value is not ...}
    with pytest.raises(ValidationError) as refused:
        RunConfig.model_validate(values)
    from protocol.run.validation_text import explained

    assert " ".join(explained("run.toml", refused.value)).startswith(f"run.toml: {reported}")


def test_a_section_that_is_no_table_is_refused() -> None:
    with pytest.raises(ValidationError):
        parse_model(7)


def test_a_family_that_this_release_has_not_is_no_module_to_import() -> None:
    with pytest.raises(LocalProtocolError, match="install a newer release"):
        config_class("os")


def test_numbers_and_layouts_of_all_families_come_without_torch() -> None:
    program = (
        "import sys, averaging.models.family as f, importlib; from protocol.tensors.model_families import *\n"
        "for name in FAMILIES: config_class(name); importlib.import_module(f'averaging.models.{name}.layout')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
