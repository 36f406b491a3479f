from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from protocol.errors import ConfigError, RemoteProtocolError, VersionError
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.rounds.schedule.target import RoundTarget
from protocol.run.manifest import (
    MANIFEST_DOMAIN,
    MAX_RUN_TOML_BYTES,
    DataSection,
    RunConfig,
    RunManifest,
    default_run_toml,
    load_run_config,
    open_manifest,
    parse_run_config,
    sign_manifest,
)

HOST = Identity(b"h" * 32)


def _manifest(**changes: object) -> RunManifest:
    values = {
        "config": parse_run_config(default_run_toml()),
        "dataset_id": "ab" * 32,
        "dataset_tokens": 1000,
        "heldout_tokens": 100,
        "zlib_bits_per_byte": 2.0,
        "pairs_nats_per_byte": 2.4,
        "host_public_key": HOST.public_key.hex(),
        "ca_certificate_sha256": "cd" * 32,
    }
    return RunManifest.model_validate({**values, **changes})


def test_error_feedback_is_written_only_where_it_is_used_so_that_older_runs_keep_their_ids() -> None:
    assert b"error_feedback" not in _manifest().canonical_bytes()
    text = default_run_toml().replace("# error_feedback = 0.95", "error_feedback = 0.95")
    fed = _manifest(config=parse_run_config(text))
    assert b'"error_feedback":0.95' in fed.canonical_bytes()
    assert fed.run_id != _manifest().run_id
    assert RunManifest.model_validate_json(fed.canonical_bytes()) == fed
    assert RunManifest.model_validate_json(_manifest().canonical_bytes()) == _manifest()


@pytest.mark.parametrize(
    ("lines", "feedback"),
    [('codec = "int8"', 0.0), ('codec = "topk"', 0.95), ('codec = "topk"\nerror_feedback = 0.0', 0.0)],
)
def test_what_a_sparse_codec_leaves_out_is_offered_again_unless_the_host_says_otherwise(
    lines: str, feedback: float
) -> None:
    config = parse_run_config(default_run_toml().replace('codec = "int8"', lines))
    assert config.round.feedback == feedback


def test_the_optimizer_is_written_only_where_it_is_chosen() -> None:
    plain = _manifest(config=parse_run_config(default_run_toml().replace("optimizer = ", "# optimizer = ")))
    assert b"optimizer" not in plain.canonical_bytes()
    assert b"matrix" not in _manifest().canonical_bytes()
    text = default_run_toml().replace("optimizer = ", "matrix_learning_rate = 0.02\noptimizer = ")
    chosen = _manifest(config=parse_run_config(text))
    assert b'"optimizer":"muon"' in chosen.canonical_bytes()
    assert chosen.config.inner.matrix_rate == 0.02
    assert chosen.run_id != _manifest().run_id
    assert RunManifest.model_validate_json(chosen.canonical_bytes()) == chosen


@pytest.mark.parametrize(
    ("old", "new", "reported"),
    [
        ("seed = 1", "sead = 1", "run.sead is not a known key"),
        ('codec = "int8"', 'adoption = "blocking"', "round.adoption is not a known key"),
        ('codec = "int8"', "min_members = 2", "round.min_members is not a known key"),
        ("keep_every = 10", "keep_every = -1", "checkpoint.keep_every is -1"),
        ("total_tokens = 20_000_000", "total_tokens = 0", "run.total_tokens is 0"),
        ("batch_tokens = 2048", "batch_tokens = -5", "inner.batch_tokens is -5"),
        ("dim = 128", 'dim = "wide"', "model.dim is 'wide'"),
        ("dim = 128", 'dim = "128"', "model.dim is '128'; expected a valid integer"),
        ("dim = 128", "dim = 128.0", "model.dim is 128.0; expected a valid integer"),
        ("dim = 128", "dim = true", "model.dim is True; expected a valid integer"),
        ("learning_rate = 0.003", "learning_rate = nan", "inner.learning_rate is nan"),
        ('name = "first-light"', 'name = "a\\nb"', r"run.name is 'a\nb'"),
        ("seed = 1", '"se\\ned" = 1', r"run.se\ned is not a known key"),
        ("dim = 128", "dim = 130", "model"),
        ('codec = "int8"', 'codec = "zip"', "round.codec is 'zip'; expected 'fp32'"),
        ("# error_feedback = 0.95", "error_feedback = 1.5", "round.error_feedback is 1.5"),
        ("# error_feedback = 0.95", "error_feedback = -0.1", "round.error_feedback is -0.1"),
        ('codec = "int8"', 'codec = "top6"', "round.codec is 'top6'"),
        ('codec = "int8"', 'codec = "int8"\nresult_codec = "top6"', 'result_codec = "top6" belongs to codec = "topk"'),
        ('codec = "int8"', 'codec = "topk"\nresult_codec = "topk"', "round.result_codec is 'topk'"),
        ("optimizer = ", "optimizer = 'sgd' # ", "inner.optimizer is 'sgd'"),
        ("optimizer = ", "matrix_learning_rate = 0.02 # ", 'matrix_learning_rate 0.02 belongs to optimizer = "muon"'),
        ("optimizer = ", "matrix_momentum = 0.9 # ", 'matrix_momentum 0.9 belongs to optimizer = "muon"'),
        ("optimizer = ", "matrix_momentum = 1.0\noptimizer = ", "inner.matrix_momentum is 1.0"),
        ("optimizer = ", "matrix_learning_rate = 0\noptimizer = ", "inner.matrix_learning_rate is 0"),
        ("# ramp_share = 0.02", "ramp_share = 1.0", "round.ramp_share is 1.0"),
        ("# ramp_share = 0.02", "ramp_share = -0.1", "round.ramp_share is -0.1"),
        ("# local_steps = ", "local_steps = 50 # ", "round.local_steps is 50"),
        ("# ramp_share = 0.02", "first_local_steps = 0", "round.first_local_steps is 0"),
        ("# ramp_share = 0.02", "first_local_steps = 9", "first_local_steps 9 belongs to a ramp_share"),
        (
            "# ramp_share = 0.02",
            "ramp_share = 0.01\nfirst_local_steps = 40",
            "round.target_tokens 122880: no round could grow: expected more than 163840, which the first local steps",
        ),
        ("# local_steps = ", "target_utilisation = 0.9 # ", 'target_utilisation 0.9 belongs to local_steps = "auto"'),
        ("# local_steps = ", "target_utilisation = 1.0\nlocal_steps = ", "round.target_utilisation is 1.0"),
        (
            "# local_steps = ",
            'link_mbit_per_s = 1.0\ntarget_utilisation = 5e-324\nlocal_steps = "auto" # ',
            "round.target_utilisation is 5e-324; expected greater than or equal to 0.01",
        ),
        ("# local_steps = ", "link_mbit_per_s = 1e-320 # ", "expected greater than or equal to 0.000001"),
        ("[data]", "[data", "is no TOML"),
        ("seed = 1", f"seed = {'1' * 5000}", "has a number of thousands of digits; expected shorter numbers"),
        (
            'name = "first-light"',
            'name = "Mülheim"',
            "run.name is 'Mülheim'; expected 1 to 64 letters from a to z, digits",
        ),
        ("learning_rate = 0.003", "", "inner.learning_rate is missing"),
        ('source = "python-stdlib"', 'source = "text"', "glob"),
        ('source = "python-stdlib"', 'field = "body"', 'field = "body" does not belong'),
        ('source = "python-stdlib"', 'source = "hf"', "a dataset belongs to the source"),
        ('source = "python-stdlib"', 'dataset = "corpus"', "a dataset belongs to the source"),
        ('source = "python-stdlib"', 'source = "hf"\nglob = "*"\ndataset = "corpus"', "a glob belongs to the sources"),
        ('source = "python-stdlib"', 'source = "hf"\ndataset = "hf://json"', "is no name on the Hub"),
        ('source = "python-stdlib"', 'source = "hf"\ndataset = "hf://../a/b"', "is no name on the Hub"),
        (
            'source = "python-stdlib"',
            'source = "hf"\ndataset = "a"\nconfiguration = "b"',
            'configuration = "b" belongs',
        ),
        ('source = "python-stdlib"', 'source = "hf"\ndataset = "a"\nsplit = "../b"', "data.split is '../b'"),
        ('source = "python-stdlib"', 'split = "test"', 'split = "test" does not belong'),
    ],
)
def test_a_bad_value_is_one_line_with_file_key_and_remedy(tmp_path: Path, old: str, new: str, reported: str) -> None:
    text = default_run_toml()
    assert old in text
    path = tmp_path / "run.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        load_run_config(path)
    line = error.value.one_line()
    assert reported in line
    assert str(path) in line
    assert "\n" not in line
    assert ";" in line


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", RoundTarget(122_880)),
        ("ramp_share = 0.02", RoundTarget(122_880, 2048, 0.02)),
        ("ramp_share = 0.02\nfirst_local_steps = 4", RoundTarget(122_880, 8192, 0.02)),
        ('local_steps = "auto"', RoundTarget(122_880, 2048, 0.0, 0.95)),
        (
            'local_steps = "auto"\nmode = "blocking"\ntarget_utilisation = 0.75',
            RoundTarget(122_880, 2048, 0.0, 0.25, is_blocking=True),
        ),
        ('ramp_share = 0.02\nlocal_steps = "auto"\ntarget_utilisation = 0.8', RoundTarget(122_880, 2048, 0.02, 0.8)),
    ],
)
def test_rounds_are_alike_unless_the_file_asks_for_a_ramp_or_for_measured_ones(
    lines: str, expected: RoundTarget
) -> None:
    text = default_run_toml().replace("longest_interval_s = 60.0", f"longest_interval_s = 60.0\n{lines}")
    config = parse_run_config(text)
    assert config.round_target == expected
    written = _manifest(config=config).canonical_bytes()
    assert (written == _manifest().canonical_bytes()) == (not lines)
    assert RunManifest.model_validate_json(written).config == config


@pytest.mark.parametrize(
    ("codec", "max_members", "expected"),
    [
        ('"int8"', 64, "int8"),
        ('"int8"\nresult_codec = "int4"', 64, "int4"),
        ('"topk"', 2, "top6"),
        ('"topk"', 4, "top6"),
        ('"topk"', 5, "top12"),
        ('"topk"', 8, "top12"),
        ('"topk"', 64, "top25"),
        ('"topk"\nresult_codec = "e3m0"', 4, "e3m0"),
    ],
)
def test_results_have_room_for_what_all_members_send_where_the_file_says_nothing_else(
    codec: str, max_members: int, expected: str
) -> None:
    text = (
        default_run_toml().replace('codec = "int8"', f"codec = {codec}").replace("min_members = 2", "min_members = 1")
    )
    assert (
        parse_run_config(text.replace("\n[model]", f"\nmax_members = {max_members}\n[model]")).result_codec == expected
    )


@pytest.mark.parametrize(
    ("lines", "most_peers"), [("", 64), ("max_members = 8", 8), ("max_peers = 64", 64), ("max_peers = 100000", 100_000)]
)
def test_a_run_takes_as_many_peers_as_a_round_unless_the_file_says_more(lines: str, most_peers: int) -> None:
    config = parse_run_config(default_run_toml().replace("\n[model]", f"\n{lines}\n[model]"))
    assert config.run.most_peers == most_peers
    written = _manifest(config=config).canonical_bytes()
    assert (b"max_peers" in written) == ("max_peers" in lines)
    assert RunManifest.model_validate_json(written).config == config


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("max_peers = 63", "run.max_peers 63: expected at least run.max_members 64"),
        ("max_members = 9\nmax_peers = 8", "run.max_peers 8: expected at least run.max_members 9"),
        ("max_peers = 0", "run.max_peers"),
        ("max_peers = 100001", "run.max_peers"),
        ("max_peers = true", "run.max_peers"),
    ],
)
def test_fewer_peers_than_a_round_takes_and_more_than_a_host_serves_are_refused_by_name(lines: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_run_config(default_run_toml().replace("\n[model]", f"\n{lines}\n[model]"))


def test_a_codec_for_results_is_written_only_where_it_is_chosen() -> None:
    written = _manifest().canonical_bytes()
    assert b"result_codec" not in written
    chosen = parse_run_config(default_run_toml().replace('codec = "int8"', 'codec = "int8"\nresult_codec = "int4"'))
    manifest = _manifest(config=chosen)
    assert b'"result_codec":"int4"' in manifest.canonical_bytes()
    assert manifest.run_id != _manifest().run_id
    assert RunManifest.model_validate_json(manifest.canonical_bytes()) == manifest


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read: No such file or directory; .*potluck init"):
        load_run_config(tmp_path / "none.toml")


def test_a_file_may_begin_with_the_byte_order_mark_of_an_editor(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(default_run_toml(), encoding="utf-8-sig")
    assert load_run_config(path) == parse_run_config(default_run_toml())


def test_a_file_that_is_no_text_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\x80\x81")
    with pytest.raises(ConfigError, match="is no text"):
        load_run_config(tmp_path / "run.toml")


def test_a_file_of_another_kind_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"#" * (MAX_RUN_TOML_BYTES + 1))
    with pytest.raises(ConfigError, match="longer than 1 MiB"):
        load_run_config(path)


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "[" + ".".join("a" * 50_000) + "]"], ids=["arrays", "tables"])
def test_a_file_nested_without_end_is_no_toml(text: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.toml"):
        parse_run_config(text)


def test_two_manifests_with_one_number_different_are_two_runs() -> None:
    assert _manifest().run_id == _manifest().run_id
    assert _manifest().run_id != _manifest(dataset_tokens=1001).run_id


def test_keys_that_came_later_are_written_only_where_they_are_used() -> None:
    data = json.loads(_manifest().canonical_bytes())["config"]["data"]
    assert sorted(data) == ["glob", "heldout_every", "shard_bytes", "source"]
    section = DataSection(source="jsonl", glob="*.jsonl", field="body")
    assert section.model_dump()["field"] == "body"
    assert DataSection.model_validate_json(section.model_dump_json()) == section


def test_a_signed_manifest_opens_to_the_same_run() -> None:
    manifest = _manifest()
    opened = open_manifest(sign_manifest(manifest, HOST), verifier=Ed25519Verifier(), expected_run_id=manifest.run_id)
    assert opened == manifest


def test_a_manifest_signed_by_somebody_else_or_of_another_run_is_refused() -> None:
    manifest = _manifest()
    with pytest.raises(RemoteProtocolError, match="another key"):
        open_manifest(sign_manifest(manifest, Identity(b"x" * 32)), verifier=Ed25519Verifier())
    other = _manifest(dataset_tokens=7)
    with pytest.raises(RemoteProtocolError, match="invite"):
        open_manifest(sign_manifest(other, HOST), verifier=Ed25519Verifier(), expected_run_id=manifest.run_id)


def test_a_manifest_of_a_release_with_other_keys_asks_for_that_release() -> None:
    values = json.loads(_manifest().canonical_bytes())
    values["config"]["round"]["colour"] = "blue"
    sealed = seal(HOST, MANIFEST_DOMAIN, bytes(32), 0, NEVER_MS, json.dumps(values).encode())
    with pytest.raises(VersionError, match=r"config\.round\.colour is not a known key.*install the release"):
        open_manifest(sealed, verifier=Ed25519Verifier())


def test_a_run_of_another_protocol_version_is_told_before_anything_else() -> None:
    with pytest.raises(VersionError, match="protocol version 3"):
        open_manifest(sign_manifest(_manifest(protocol_version=3), HOST), verifier=Ed25519Verifier())


def test_a_run_that_an_older_release_started_still_opens_and_keeps_its_id() -> None:
    old = _manifest(protocol_version=1)
    assert open_manifest(sign_manifest(old, HOST), verifier=Ed25519Verifier()) == old
    assert old.run_id != _manifest().run_id


def test_momentum_that_the_plain_mean_would_ignore_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(default_run_toml().replace("momentum = 0.0", "momentum = 0.9"))
    with pytest.raises(ConfigError, match=r'outer: momentum 0\.9 with kind = "mean"'):
        load_run_config(path)


NESTEROV = {'kind = "mean"': 'kind = "nesterov"', "momentum = 0.0": "momentum = 0.9"}


def _nesterov(*more: str) -> str:
    text = _with("ramp_share = 0.02")
    for old, new in NESTEROV.items():
        text = text.replace(old, "\n".join((new, *more)) if old.startswith("momentum") else new)
    return text


def test_momentum_in_the_short_rounds_of_a_ramp_is_refused_with_the_numbers_with_which_it_works() -> None:
    with pytest.raises(
        ConfigError,
        match=r"outer\.momentum 0\.9 with round\.ramp_share 0\.02.*momentum_from_steps = 64.*target_tokens of at least 262144",
    ):
        parse_run_config(_nesterov())
    from_64 = _nesterov("momentum_from_steps = 64")
    with pytest.raises(ConfigError, match=r"longest rounds are of 30 local steps.*at most 30, or .* at least 262144"):
        parse_run_config(from_64)
    config = parse_run_config(from_64.replace("122_880", "262_144"))
    assert config.momentum_from_tokens == 64 * config.inner.batch_tokens


def test_steps_from_which_there_is_momentum_belong_to_momentum() -> None:
    text = default_run_toml().replace("momentum = 0.0", "momentum = 0.0\nmomentum_from_steps = 64")
    with pytest.raises(ConfigError, match=r"momentum_from_steps 64 belongs to a momentum"):
        parse_run_config(text)
    assert parse_run_config(default_run_toml()).momentum_from_tokens == 0


STREAMING = 'mode = "streaming"'


def _with(*lines: str) -> str:
    return default_run_toml().replace('codec = "int8"', "\n".join(('codec = "int8"', *lines)))


def test_a_streaming_run_has_fragments_and_mixes_no_commits_where_it_says_nothing_else() -> None:
    config = parse_run_config(_with(STREAMING))
    assert (config.num_fragments, config.delay_steps, config.alpha) == (1, 0, None)
    assert parse_run_config(_with(STREAMING, "alpha = 0.5")).delay_steps == 5
    manifest = _manifest(config=parse_run_config(_with(STREAMING, "fragments = 2", "delay_steps = 3", "alpha = 0.25")))
    assert list(manifest.unit_schemas()) == ["fragment-0", "fragment-1", "embeddings"]
    assert (manifest.config.delay_steps, manifest.config.alpha) == (3, 0.25)
    assert RunManifest.model_validate_json(manifest.canonical_bytes()) == manifest


def test_runs_that_average_the_whole_model_at_once_have_one_unit_and_keep_their_ids() -> None:
    for mode in ("overlap", "blocking"):
        manifest = _manifest(config=parse_run_config(_with(f'mode = "{mode}"')))
        assert list(manifest.unit_schemas()) == ["fragment-0"]
        assert (manifest.run_id == _manifest().run_id) == (mode == "overlap")


@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        (["fragments = 2"], 'fragments = 2 belongs to mode = "streaming", not to "overlap"'),
        (['mode = "blocking"', "alpha = 0.5"], 'alpha = 0.5 belongs to mode = "streaming", not to "blocking"'),
        ([STREAMING, "fragments = 5"], "round.fragments 5: expected at most the 4 of model.num_layers"),
        (
            [STREAMING, "delay_steps = 15", "alpha = 0.5"],
            "expected a delay of at most 14, or round.target_tokens of at least 131072",
        ),
        (
            [STREAMING, "delay_steps = 0", "alpha = 0.5"],
            "nothing would be mixed: expected delay_steps of at least 1, or no alpha",
        ),
        ([STREAMING, "delay_steps = 3"], "delay_steps = 3 without alpha: nothing is mixed"),
        ([STREAMING, "alpha = 1.0"], "round.alpha is 1.0"),
        ([STREAMING, "ramp_share = 0.02"], 'ramp_share 0.02 with mode = "streaming": expected rounds of one size'),
        (
            [STREAMING, 'local_steps = "auto"'],
            'local_steps = "auto" with mode = "streaming": expected rounds of one size',
        ),
        (['mode = "eager"'], "round.mode is 'eager'"),
        (
            ["ramp_share = 0.0001"],
            "no round would grow: expected more than 4096, which the first local steps of 2 members",
        ),
        (
            ["link_mbit_per_s = 0.3", 'local_steps = "auto"', 'mode = "blocking"'],
            "with round.target_utilisation 0.95 it would last 823 s of round.longest_interval_s 60",
        ),
        (["link_mbit_per_s = 0.2"], "expected a link of at least 0.206, round.longest_interval_s of at least 62, or"),
    ],
)
def test_settings_of_modes_that_contradict_each_other_are_refused(lines: list[str], reported: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_run_config(_with(*lines))
    assert reported in caught.value.one_line()


@pytest.mark.parametrize("lines", [[], ['codec = "e3m0"'], ["longest_interval_s = 30.0"]], ids=["int8", "e3m0", "30 s"])
def test_the_slowest_link_that_a_run_names_carries_its_rounds_and_a_slower_one_is_refused(lines: list[str]) -> None:
    text = default_run_toml()
    for line in lines:
        text = re.sub(rf"^{line.split()[0]} = \S+", line, text, flags=re.MULTILINE)

    def with_link(mbit_per_s: float) -> RunConfig:
        return parse_run_config(text.replace("[round]", f"[round]\nlink_mbit_per_s = {mbit_per_s}"))

    needed = parse_run_config(text).needed_mbit_per_s
    assert with_link(needed).needed_mbit_per_s == needed
    with pytest.raises(ConfigError, match=f"expected a link of at least {needed:g},"):
        with_link(0.98 * needed)


def test_chunks_are_as_long_as_the_host_says_or_as_its_model_asks_for_and_peers_agree_on_the_number() -> None:
    text = default_run_toml()
    by_size = parse_run_config(text)
    assert by_size.chunk_elements == 16384
    large = parse_run_config(text.replace("dim = 128", "dim = 1024").replace("ffn_dim = 352", "ffn_dim = 2816"))
    assert large.chunk_elements == 65536
    chosen = parse_run_config(text.replace('codec = "int8"', 'codec = "int8"\nchunk_elements = 512'))
    assert chosen.chunk_elements == 512
    for config in (by_size, large, chosen):
        written = config.model_dump_json()
        reported = RunConfig.model_validate_json(written)
        assert reported.round.chunk_elements == config.chunk_elements, (
            "written, whatever a later release takes for a default"
        )
        assert reported.model_dump_json() == written


def test_a_number_that_the_file_does_not_say_is_not_among_the_keys_that_were_set() -> None:
    config = parse_run_config(default_run_toml())
    assert "chunk_elements" not in config.round.model_fields_set
    assert config.round.chunk_elements is None
    assert config.round.model_copy(update={"longest_interval_s": 9.0}).chunk_elements is None


def test_a_run_is_the_same_one_whether_its_file_said_a_number_or_it_was_worked_out() -> None:
    config = parse_run_config(default_run_toml())
    reported = RunConfig.model_validate_json(config.model_dump_json())
    assert reported == config
    assert hash(reported) == hash(config)
    assert reported != parse_run_config(default_run_toml().replace('codec = "int8"', 'codec = "int4"'))
