"""A run of experts in run.toml: what it is, and which numbers are refused."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

import pytest

from protocol.errors import ConfigError, VersionError
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.run.experts_section import RunNumbers, expert_contradiction
from protocol.run.manifest import (
    MANIFEST_DOMAIN,
    RunManifest,
    default_run_toml,
    open_manifest,
    parse_run_config,
)
from protocol.tensors.expert_schema import MixtureConfig
from protocol.tensors.model_config import ModelConfig, model_schema
from tests.protocol.run.made_manifest import manifest_of

EXPERTS = "[experts]\nnum_experts = 2\nffn_dim = 64\n"


def expert_toml(*lines: str, section: str = EXPERTS) -> str:
    """The default file as an expert run; lines as 'key = value' replace or join those of the section [run] or [round]."""
    text = default_run_toml().replace('# shards = "expert"', 'shards = "expert"')
    text = text[: text.index("# [experts]")]
    for line in lines:
        key = line.split(" =")[0]
        kept = [old for old in text.split("\n") if not old.startswith(f"{key} =")]
        where = "[round]" if key in ("mode", "fragments", "ramp_share", "local_steps", "target_tokens") else "[run]"
        kept.insert(kept.index(where) + 1, line)
        text = "\n".join(kept)
    return text + section


def test_an_expert_run_has_a_trunk_and_experts_and_says_so_in_its_manifest() -> None:
    manifest = manifest_of(parse_run_config(expert_toml()))
    assert manifest.config.mixture == MixtureConfig(num_experts=2, ffn_dim=64)
    assert list(manifest.unit_schemas()) == ["trunk", "expert-0", "expert-1"]
    assert [schema.unit for schema in manifest.units_held([1]).schemas] == ["trunk", "expert-1"]
    assert RunManifest.model_validate_json(manifest.canonical_bytes()) == manifest
    assert b'"shards":"expert"' in manifest.canonical_bytes()
    assert b"min_documents" not in manifest.canonical_bytes()


@pytest.mark.parametrize(
    ("more", "run_id"),
    [
        ("", "cab4a97a05111205744a787264f34d2b1495b3c98cd3644102d40b9c920f7c1b"),
        ("reassign_every_rounds = 0\n", "cab4a97a05111205744a787264f34d2b1495b3c98cd3644102d40b9c920f7c1b"),
        (
            'router_features = "embeddings"\nholdings = 2\n',
            "4bd010537aa1cc34ce18452c0e284a8d91ae79d872ae847a5db7051c3dee6860",
        ),
    ],
)
def test_a_manifest_of_experts_keeps_the_id_that_it_had_when_documents_could_be_sent_elsewhere(
    more: str, run_id: str
) -> None:
    manifest = manifest_of(parse_run_config(expert_toml(section=EXPERTS + more)), protocol_version=1)
    assert manifest.run_id.hex() == run_id
    assert b"reassign" not in manifest.canonical_bytes()
    assert RunManifest.model_validate_json(manifest.canonical_bytes()) == manifest


def test_a_signed_manifest_of_a_run_that_sends_documents_elsewhere_is_refused_in_one_line() -> None:
    host = Identity(b"h" * 32)
    manifest = manifest_of(parse_run_config(expert_toml()))
    values = json.loads(manifest.canonical_bytes()) | {"host_public_key": host.public_key.hex()}
    values["config"]["experts"]["reassign_every_rounds"] = 20
    sealed = seal(host, MANIFEST_DOMAIN, bytes(32), 0, NEVER_MS, json.dumps(values).encode())
    with pytest.raises(VersionError) as caught:
        open_manifest(sealed, verifier=Ed25519Verifier())
    assert caught.value.one_line() == (
        "the run's manifest: config.experts: reassign_every_rounds is 20, and documents stay with the expert that they were "
        "packed for: expected 0, or no such line; install the release that made the run"
    )


def test_a_run_without_experts_keeps_its_id() -> None:
    canonical = manifest_of(parse_run_config(default_run_toml())).canonical_bytes()
    assert b"shards" not in canonical
    assert b"experts" not in canonical


def test_what_a_peer_holds_is_the_trunk_and_its_experts() -> None:
    config = parse_run_config(expert_toml())
    expert = 3 * 64 * config.model.dim * config.model.num_layers
    trunk = model_schema(config.model).num_elements
    assert (config.held_elements, config.num_elements) == (trunk + expert, trunk + 2 * expert)
    assert parse_run_config(default_run_toml()).held_elements == trunk
    both = parse_run_config(expert_toml(section=EXPERTS + "holdings = 2\n"))
    assert both.held_elements == trunk + 2 * expert


@pytest.mark.parametrize(
    ("lines", "section", "reported"),
    [
        ([], "", 'run.shards = "expert": expected a section [experts] with num_experts and ffn_dim'),
        (['shards = "data"'], EXPERTS, 'the section [experts] belongs to run.shards = "expert", not to "data"'),
        (['shards = "rows"'], EXPERTS, "run.shards is 'rows'"),
        ([], EXPERTS + "top_k = 3\n", "experts.top_k 3 of 2 experts: expected at most 2"),
        ([], EXPERTS + "holdings = 3\n", "experts.holdings 3 of 2 experts: expected at most 2"),
        ([], EXPERTS + "experts = 3\n", "experts.experts is not a known key"),
        (
            [],
            EXPERTS.replace("2", "8", 1),
            "hold 1 each: expected at most 2, experts.holdings of 4, or run.min_members of 8",
        ),
        (
            [],
            EXPERTS + "reassign_every_rounds = 4\n",
            "experts: reassign_every_rounds is 4, and documents stay with the expert that they were packed for: expected 0",
        ),
        (
            [],
            EXPERTS + "reassign_every_rounds = false\n",
            "experts: reassign_every_rounds is False, and documents stay",
        ),
        (["target_tokens = 1"], EXPERTS, "round.target_tokens 1: expected at least one token for each of 2 experts"),
        (['mode = "streaming"'], EXPERTS, 'round.mode = "streaming" with run.shards = "expert": expected "overlap"'),
        (['mode = "blocking"'], EXPERTS, 'round.mode = "blocking" with run.shards = "expert": expected "overlap"'),
        (["ramp_share = 0.02"], EXPERTS, "round.ramp_share 0.02 with run.shards"),
        (['local_steps = "auto"'], EXPERTS, 'round.local_steps = "auto" with run.shards'),
        (['start_from = "llama"'], EXPERTS, 'run.start_from = "llama" with run.shards = "expert"'),
    ],
)
def test_numbers_that_do_not_fit_an_expert_run_are_refused_in_one_line(
    lines: list[str], section: str, reported: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_run_config(expert_toml(*lines, section=section))
    assert reported in caught.value.one_line()
    assert "\n" not in caught.value.one_line()


def test_a_family_that_takes_no_experts_is_refused_by_name() -> None:
    model = cast(ModelConfig, SimpleNamespace(family="plain", takes_experts=False))
    beside = RunNumbers("expert", 2, "", "overlap", 0.0, "", 0.0, 1000)
    experts = parse_run_config(expert_toml()).experts
    assert 'family = "plain", which takes no experts' in expert_contradiction(experts, model, beside)
    assert not expert_contradiction(None, model, RunNumbers("data", 2, "", "overlap", 0.0, "", 0.0, 1000))
