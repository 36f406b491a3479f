"""A router file that run.toml names is looked at before a run is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from averaging.data.packing.document_router import fit_router
from averaging.data.packing.expert_shards import expert_shards, read_router
from averaging.data.shards import ShardCache
from averaging.data.sources.sources import open_source
from averaging.data.token_reader import TokenReader
from averaging.data.tokenizer import ByteTokenizer, decode_tokens
from coordinator.run.run_files import load_run, open_run
from coordinator.run.run_router import check_router, packed_texts, routing_of
from protocol.errors import ConfigError
from protocol.identity.identity import Identity
from protocol.run.data_section import DataSection
from protocol.run.manifest import RunConfig, parse_run_config
from tests.coordinator.run.test_run_files import RUN_TOML
from tests.protocol.run.test_experts_section import EXPERTS, expert_toml

HOST = Identity(b"h" * 32)


def _config(num_experts: int = 2) -> RunConfig:
    section = EXPERTS.replace("= 2", f"= {num_experts}", 1) + f'router = "words.router"\nholdings = {num_experts}\n'
    return parse_run_config(expert_toml(section=section))


def test_a_router_of_as_many_experts_is_taken(tmp_path: Path) -> None:
    router = fit_router([b"one text of words", b"another one, of others"], 2)
    (tmp_path / "words.router").write_bytes(router.to_bytes())
    check_router(_config(), tmp_path)


def test_a_run_that_names_none_needs_none(tmp_path: Path) -> None:
    check_router(parse_run_config(expert_toml()), tmp_path)


def test_a_router_that_is_not_there_or_of_other_experts_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"words\.router cannot be read: No such file") as caught:
        check_router(_config(), tmp_path)
    assert "leave it out" in caught.value.one_line()
    router = fit_router([b"one text of words", b"another one, of others"], 2)
    (tmp_path / "words.router").write_bytes(router.to_bytes())
    with pytest.raises(ConfigError, match=r"words\.router: a router file that begins"):
        check_router(_config(3), tmp_path)


def run_file(folder: Path, *lines: str) -> Path:
    """Two kinds of text, a dozen documents of each."""
    (folder / "texts").mkdir(parents=True)
    for number in range(12):
        (folder / "texts" / f"prose{number}.txt").write_text(f"In chapter {number} nothing is to be seen. " * 30)
        (folder / "texts" / f"code{number}.txt").write_text(f"def f{number}(x):\n    return x[{number}]\n" * 30)
    path = folder / "run.toml"
    numbers = ("num_experts = 2", "ffn_dim = 8", "min_documents = 4", *lines)
    text = RUN_TOML.replace("[data]", "[data]\nheldout_every = 3").replace("[run]", '[run]\nshards = "expert"')
    path.write_text(text + "[experts]\n" + "\n".join(numbers) + "\n")
    return path


def test_a_run_of_experts_is_packed_for_each_of_them_and_found_again(tmp_path: Path) -> None:
    run = open_run(run_file(tmp_path), tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    cache = ShardCache(tmp_path / "state" / "data")
    kinds = set()
    for expert in range(2):
        reader = TokenReader([cache.path(e.sha256) for e in expert_shards(run.dataset, expert, "heldout")])
        kinds.add("def f" in decode_tokens(reader.read(0, 60)))
    assert kinds == {True, False}
    router = read_router(run.dataset, 2, cache)
    again = load_run(tmp_path / "state")
    assert read_router(again.dataset, 2, cache).to_bytes() == router.to_bytes()
    named = tmp_path / "named"
    path = run_file(named, 'router = "words.router"')
    (named / "words.router").write_bytes(router.to_bytes())
    assert open_run(path, named / "state", HOST, now_unix_s=1_700_000_000.0).dataset == run.dataset


@pytest.mark.parametrize(
    ("name", "data", "lines", "said"),
    [
        ("bytes", b"\xff\xfe" * 40, (), r"data: \S+/texts/bytes\.txt is no text"),
        ("more", b"def f(x): ...", ("min_documents = 40",), r"\d+ documents to train on; expected at least 40"),
    ],
)
def test_documents_that_no_expert_can_have_leave_nothing_packed(
    tmp_path: Path, name: str, data: bytes, lines: tuple[str, ...], said: str
) -> None:
    path = run_file(tmp_path)
    (tmp_path / "texts" / f"{name}.txt").write_bytes(data)
    if lines:
        path.write_text(path.read_text().replace("min_documents = 4", lines[0]))
    with pytest.raises(ConfigError, match=said):
        open_run(path, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    assert not (tmp_path / "state" / "data").exists()


def test_a_run_without_experts_routes_nothing_and_pythons_library_has_no_empty_documents_with_them(
    tmp_path: Path,
) -> None:
    plain, config = parse_run_config(RUN_TOML), parse_run_config(expert_toml())
    source = open_source(DataSection(), tmp_path)
    assert routing_of(plain, tmp_path, packed_texts(plain, source), ByteTokenizer()) is None
    documents = {True: 0, False: 0}
    for which in (config, plain.model_copy(update={"data": DataSection()})):
        documents[which is config] = sum(text.is_last for text in packed_texts(which, source)())
    assert 0 < documents[True] < documents[False]


def test_a_router_of_embeddings_is_made_of_the_runs_first_values_and_another_kind_is_refused(tmp_path: Path) -> None:
    line = 'router_features = "embeddings"'
    run = open_run(run_file(tmp_path, line), tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    cache = ShardCache(tmp_path / "state" / "data")
    router = read_router(run.dataset, 2, cache, features="embeddings", tokenizer=ByteTokenizer())
    assert router.embeddings is not None
    assert router.embeddings.origin == f"seed {run.manifest.config.run.seed}"
    kinds = [
        router.nearest(text)[0] for text in (b"def f7(x):\n    return x[7]\n" * 30, b"In chapter 7 there is. " * 30)
    ]
    assert sorted(kinds) == [0, 1]
    assert b'"router_features":"embeddings"' in run.manifest.canonical_bytes()
    (tmp_path / "words.router").write_bytes(router.to_bytes())
    with pytest.raises(ConfigError, match=r"words\.router: a router file that begins .*tokens") as caught:
        check_router(_config(), tmp_path)
    assert "\n" not in caught.value.one_line()
    named = tmp_path / "named"
    path = run_file(named, line, 'router = "../words.router"')
    assert open_run(path, named / "state", HOST, now_unix_s=1_700_000_000.0).dataset == run.dataset


def test_embeddings_that_are_too_large_for_a_router_are_refused_before_anything_is_packed(tmp_path: Path) -> None:
    config = parse_run_config(expert_toml(section=EXPERTS + 'router_features = "embeddings"\n'))
    many = config.model.model_copy(update={"vocab_size": 1 << 19})
    check_router(config, tmp_path)
    with pytest.raises(ConfigError, match=r'"embeddings" of 524288 tokens, 128 bytes each; expected at most 60 MiB'):
        check_router(config.model_copy(update={"model": many}), tmp_path)
