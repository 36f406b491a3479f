"""A pipeline run in run.toml: what it is, and which numbers are refused."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import tomli_w

from protocol.errors import ConfigError, VersionError
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.run.manifest import (
    MANIFEST_DOMAIN,
    RunConfig,
    RunManifest,
    default_run_toml,
    open_manifest,
    parse_run_config,
    sign_manifest,
)
from protocol.run.pipeline_section import parse_layers
from protocol.tensors.stage_schema import stage_schema
from tests.protocol.run.made_manifest import manifest_of


def pipeline_run(**changes: dict[str, Any]) -> RunConfig:
    """The default file as a pipeline run of three stages; keyword arguments are keys of sections to set."""
    run = tomllib.loads(default_run_toml())
    run["run"] |= {"shards": "pipeline", "min_members": 3}
    run["model"]["is_tied"] = False
    run["round"] |= {"mode": "blocking", "target_tokens": 20 * run["inner"]["batch_tokens"]}
    run["pipeline"] = {"stages": 3, "inner_steps": 10}
    for section, values in changes.items():
        run[section] = {key: value for key, value in {**run[section], **values}.items() if value is not None}
    return parse_run_config(tomli_w.dumps(run))


def test_a_pipeline_run_has_a_unit_for_each_stage_and_says_so_in_its_manifest() -> None:
    manifest = manifest_of(pipeline_run())
    assert list(manifest.unit_schemas()) == ["stage-0", "stage-1", "stage-2"] == list(manifest.parts)
    assert [schema.unit for schema in manifest.units_held([1]).schemas] == ["stage-1"]
    assert manifest.units.whole.tensors == manifest.model_schema.tensors
    assert RunManifest.model_validate_json(manifest.canonical_bytes()) == manifest
    assert b'"pipeline":{"inner_steps":10,"stages":3}' in manifest.canonical_bytes()


@pytest.mark.parametrize("changes", [{}, {"mode": "lanes"}])
def test_a_run_of_lanes_has_the_id_that_it_had_when_there_was_another_mode(changes: dict[str, str]) -> None:
    manifest = manifest_of(pipeline_run(pipeline=changes), protocol_version=1)
    assert manifest.run_id.hex() == "4f90f589d178fc2a3f12fde9c46ecb94e2ed2d6ba7086707e346af707249126d"


def test_the_mode_that_is_no_more_is_refused_in_one_sentence_in_a_file_and_in_a_manifest() -> None:
    with pytest.raises(ConfigError) as in_file:
        pipeline_run(pipeline={"mode": "synced"})
    found = """pipeline: mode = 'synced': expected "lanes", the only mode of a pipeline run"""
    assert in_file.value.one_line() == f"run.toml: {found}; change it and start again"
    host = Identity(b"host".ljust(32, b"h"))
    manifest = manifest_of(pipeline_run()).model_copy(update={"host_public_key": host.public_key.hex()})
    data = sign_manifest(manifest, host)
    assert open_manifest(data, verifier=Ed25519Verifier()).run_id == manifest.run_id
    payload = manifest.canonical_bytes().replace(b'"pipeline":{', b'"pipeline":{"mode":"synced",')
    synced = seal(host, MANIFEST_DOMAIN, bytes(32), 0, NEVER_MS, payload)
    with pytest.raises(VersionError) as in_manifest:
        open_manifest(synced, verifier=Ed25519Verifier())
    assert found in in_manifest.value.one_line()
    assert in_manifest.value.remedy == "install the release that made the run"


def test_a_run_without_stages_keeps_its_id() -> None:
    assert b"pipeline" not in manifest_of(parse_run_config(default_run_toml())).canonical_bytes()


def test_stages_are_cut_evenly_or_as_the_file_says() -> None:
    stages = pipeline_run().stages
    assert stages is not None
    assert sum(stages.layers) == 4
    config = pipeline_run(pipeline={"stages": None, "layers": "0, 3, 1"})
    assert config.stages is not None
    assert config.stages.layers == (0, 3, 1)
    assert config.held_elements == max(stage_schema(config.stages, stage).num_elements for stage in range(3))


def test_the_numbers_of_a_lane_follow_from_the_file() -> None:
    config = pipeline_run(pipeline={"schedule": "gpipe", "snapshot_every_steps": 2})
    assert config.pipeline is not None
    lanes = config.pipeline.lane_config(config.model, config.inner)
    assert (lanes.schedule, lanes.num_stages, lanes.inner_steps, lanes.snapshot_steps) == ("gpipe", 3, 10, 2)
    assert lanes.step_tokens == config.inner.batch_tokens


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"pipeline": {"stages": None, "layers": "1, 1, 1"}}, "3 together; expected the model's 4"),
        ({"pipeline": {"stages": None, "layers": "4, 0, 0"}}, "stage 1 of [4, 0, 0] with 0 layers"),
        ({"pipeline": {"layers": "1, 2, 1"}}, "both of pipeline.stages and pipeline.layers"),
        ({"pipeline": {"stages": None}}, "neither stages nor layers"),
        ({"pipeline": {"stages": 7}}, "pipeline.stages 7 of a model of 4 layers"),
        ({"pipeline": {"micro_batches": 3}}, "pipeline.micro_batches 3"),
        ({"pipeline": {"inner_steps": 7}}, "expected a multiple of"),
        ({"run": {"min_members": 2}}, "min_members of at least 3"),
        ({"run": {"shards": "data"}}, "belongs to run.shards"),
        ({"model": {"is_tied": True}}, "matrices of their own"),
        ({"round": {"mode": "overlap"}}, 'expected "blocking"'),
        ({"round": {"ramp_share": 0.1}}, "expected rounds of one size"),
        ({"round": {"error_feedback": 0.5}}, "expected 0"),
        (
            {"pipeline": {"forward_codec": "zip"}},
            "pipeline.forward_codec is 'zip'; expected 'fp32', 'bf16', 'int8' or 'int4'",
        ),
        ({"pipeline": {"forward_codec": "fp64"}}, "pipeline.forward_codec is 'fp64'; expected 'fp32', 'bf16'"),
        (
            {"pipeline": {"backward_codec": "int4"}},
            "pipeline.backward_codec is 'int4'; expected 'fp32', 'bf16' or 'int8'",
        ),
    ],
)
def test_numbers_that_cannot_work_are_refused_in_one_line(changes: dict[str, dict[str, Any]], found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pipeline_run(**changes)
    assert found in caught.value.one_line()
    assert "\n" not in caught.value.one_line()


def test_a_pipeline_run_without_its_section_is_refused() -> None:
    text = default_run_toml().replace('# shards = "pipeline"', 'shards = "pipeline"')
    with pytest.raises(ConfigError, match="expected a section"):
        parse_run_config(text)


@pytest.mark.parametrize("text", ["", "1,,2", "1, two", "-1, 2", "12345, 1"])
def test_layers_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_layers(text)
