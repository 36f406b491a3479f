"""`potluck host --dry-run` as its user meets it."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest
import typer
from tokenizers import Tokenizer, models
from typer.testing import CliRunner

from coordinator.command_line import add_commands
from coordinator.policy.config import HostConfig
from coordinator.run.run_files import open_run
from protocol.errors import ConfigError, PotluckError
from protocol.estimates.dry_run import END
from tests.coordinator.run.test_run_files import HOST, RUN_TOML, write_run_file


@pytest.fixture(autouse=True)
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "host.toml"
    monkeypatch.setattr(HostConfig, "file", staticmethod(lambda: path))
    return path


def _no_models() -> NoReturn:
    raise AssertionError("a dry run merges nothing")


def _dry_run(run_file: Path, *flags: str) -> list[str]:
    app = typer.Typer()
    add_commands(app, _no_models, _no_models)
    done = CliRunner().invoke(app, ["host", str(run_file), "--dry-run", *flags], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output.splitlines()


def _listing(folder: Path) -> list[tuple[Path, int, int]]:
    return sorted((path, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*"))


def test_nothing_is_written_whether_the_run_is_new_or_there(tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path)
    before = _listing(tmp_path)
    lines = _dry_run(run_file, "--state-dir", str(tmp_path / "state"))
    assert lines[-1] == END
    assert "  tiny, a new run" in lines
    assert _listing(tmp_path) == before
    open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    before = _listing(tmp_path)
    lines = _dry_run(run_file, "--state-dir", str(tmp_path / "state"))
    assert "  tiny, an existing run that would resume" in lines
    assert any(line.endswith(", packed already") for line in lines)
    assert _listing(tmp_path) == before


def test_the_hosts_words_about_the_run_are_listed(tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path)
    run_file.write_text(run_file.read_text() + '[page]\ncontact = "host@example.org"\n')
    (line,) = (line for line in _dry_run(run_file, "--state-dir", str(tmp_path / "s")) if "page.contact" in line)
    assert line.split() == ["page.contact", "host@example.org", "(file", f"{run_file})"]


def test_each_setting_says_where_it_comes_from(
    tmp_path: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file.write_text("grpc_port = 4\nhttp_port = 4\np2p_port = 4\n", encoding="utf8")
    monkeypatch.setenv("POTLUCK_HOST_GRPC_PORT", "3")
    monkeypatch.setenv("POTLUCK_HOST_HTTP_PORT", "3")
    reported = {" ".join(line.split()) for line in _dry_run(write_run_file(tmp_path), "--grpc-port", "2")}
    assert {
        "grpc_port 2 (flag --grpc-port)",
        "http_port 3 (variable POTLUCK_HOST_HTTP_PORT)",
        f"p2p_port 4 (file {config_file})",
        "invite_uses 100 (default)",
        f"model.dim 8 (file {tmp_path / 'run.toml'})",
        "checkpoint.keep 3 (default)",
        "round.loss_gate false (default)",
    } <= reported


def test_keys_that_the_open_door_sets_come_from_the_flag_and_those_of_the_file_from_the_file(tmp_path: Path) -> None:
    def told(run_file: Path) -> set[str]:
        return {" ".join(line.split()) for line in _dry_run(run_file, "--open", "--state-dir", str(tmp_path / "s"))}

    run_file = write_run_file(tmp_path)
    text = run_file.read_text()
    assert {
        "admission.open true (flag --open)",
        "round.robust clip-agree (flag --open)",
        "round.loss_gate true (default)",
        f"model.dim 8 (file {run_file})",
    } <= told(run_file)
    run_file.write_text(
        text.replace("[round]", '[round]\nrobust = "clip"') + "[admission]\nopen = true\npuzzle_bits = 3\n"
    )
    assert {
        f"admission.open true (file {run_file})",
        f"admission.puzzle_bits 3 (file {run_file})",
        f"round.robust clip (file {run_file})",
    } <= told(run_file)


def test_what_could_not_be_hosted_is_told_as_without_dry_run(tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path)
    state = tmp_path / "state"
    open_run(run_file, state, HOST, now_unix_s=1_700_000_000.0)
    text = run_file.read_text()
    run_file.write_text(text.replace("total_tokens = 1000", "total_tokens = 2000"))
    with pytest.raises(
        ConfigError, match=r"run\.total_tokens differs from .*to train its model for longer.*start_from"
    ):
        _dry_run(run_file, "--state-dir", str(state))
    run_file.write_text(text.replace("texts/*.txt", "none/*.txt"))
    with pytest.raises(ConfigError, match=r"matches nothing below"):
        _dry_run(run_file, "--state-dir", str(tmp_path / "other"))
    run_file.write_text(text.replace("dim = 8", "dmi = 8"))
    with pytest.raises(ConfigError, match=r"model\.dmi is not a known key"):
        _dry_run(run_file, "--state-dir", str(tmp_path / "other"))
    run_file.write_text(text.replace("[round]", "[round]\nlink_mbit_per_s = 0.000001"))
    with pytest.raises(
        ConfigError, match=r"expected a link of at least [0-9.]+, round\.longest_interval_s of at least"
    ):
        _dry_run(run_file, "--state-dir", str(tmp_path / "other"))


TEXTS = 'source = "text"\nglob = "texts/*.txt"'
CHATS = 'source = "jsonl"\nglob = "rows.jsonl"\nformat = "chat"\nchat_template = "broken.jinja"'
BPE = '\ntokenizer = "bpe"'
MODEL = RUN_TOML[RUN_TOML.index("[model]") : RUN_TOML.index("[inner]")]
ASKED = '\n[[evaluate]]\nname = "asked"\nfile = "asked.jsonl"\nkind = "prompts"\n'
LONG = '\n[[evaluate]]\nname = "long"\nfile = "long.jsonl"\n'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[run]", '[run]\nstart_from = "nowhere"', r"nowhere/config\.json is not there"),
        ("[data]", '[data]\ntokenizer = "gone.json"', r"gone\.json cannot be read"),
        ("[data]", '[data]\ntokenizer = "bpe"', r'vocab_size is 257 with data\.tokenizer = "bpe"; expected more'),
        ("[model]", "[model]\nvocab_size = 200", "vocab_size is 200; expected at least 257"),
        (
            "target_tokens = 300",
            "target_tokens = 50",
            r"round\.target_tokens is 50; expected at least inner\.batch_tokens, 64",
        ),
        (
            "chunk_elements = 256",
            "chunk_elements = 262144",
            r"round\.chunk_elements is 262144: no newcomer could fetch the state.*; expected at most 131072",
        ),
        (
            "total_tokens = 1000",
            "total_tokens = 9007199254740992",
            r"run\.total_tokens is 9007199254740992: .*; expected at most 4503599627370496; take fewer tokens",
        ),
        ("[model]", "max_peers = 63\n[model]", r"run\.max_peers 63: expected at least run\.max_members 64"),
        ("[model]", "max_members = 9\nmax_peers = 8\n[model]", r"run\.max_peers 8: expected at least .* 9"),
        ("[model]", "max_peers = 0\n[model]", r"run\.max_peers"),
        ("[model]", "max_peers = 100001\n[model]", r"run\.max_peers"),
        ("[model]", "max_peers = -1\n[model]", r"run\.max_peers"),
        ("[model]", 'max_peers = "many"\n[model]', r"run\.max_peers"),
        ("[model]", "max_peers = 500.5\n[model]", r"run\.max_peers"),
        ("[model]", "max_peers = 1e400\n[model]", r"run\.max_peers"),
        ("texts/*.txt", "nowhere/*.txt", "matches nothing"),
        (TEXTS, CHATS, r"broken\.jinja fails: unexpected"),
        (MODEL, MODEL.replace("[model]", "[model]\nvocab_size = 300").replace(TEXTS, CHATS + BPE), "fails: unexpected"),
        (TEXTS, CHATS.replace("broken", "gone"), r"gone\.jinja cannot be read"),
        ("[run]", ASKED.replace("asked.jsonl", "gone.jsonl") + "[run]", r"gone\.jsonl does not exist"),
        ("[run]", ASKED.replace('"prompts"', '"multiple_choice"') + "[run]", r"line 1 has no question"),
        ("[run]", LONG + "[run]", r"long\.jsonl line 1: choice .* tokens after its question; expected 1 to 8"),
    ],
)
def test_whatever_host_refuses_before_it_reads_text_a_dry_run_refuses_in_the_same_words(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    run_file = write_run_file(tmp_path)
    (tmp_path / "broken.jinja").write_text("{% if")
    (tmp_path / "rows.jsonl").write_text('{"messages": []}\n')
    (tmp_path / "asked.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "long.jsonl").write_text('{"question": "a", "choices": ["b", "more than eight bytes"], "answer": 0}\n')
    run_file.write_text(run_file.read_text().replace(old, new, 1))
    with pytest.raises(PotluckError, match=said) as dry:
        _dry_run(run_file, "--state-dir", str(tmp_path / "state"))
    with pytest.raises(PotluckError, match=said) as wet:
        open_run(run_file, tmp_path / "state", HOST, now_unix_s=1_700_000_000.0)
    assert dry.value.one_line() == wet.value.one_line()


def test_end_of_documents_that_no_file_names_is_told(tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path)
    Tokenizer(models.WordLevel({"text": 0, "</s>": 1, "[UNK]": 2}, unk_token="[UNK]")).save(str(tmp_path / "w.json"))
    run_file.write_text(run_file.read_text().replace("[data]", '[data]\ntokenizer = "w.json"'))
    (note,) = [line for line in _dry_run(run_file, "--state-dir", str(tmp_path / "s")) if line.startswith("note: ")]
    assert "which token ends a document; '</s>' does" in note


def test_the_host_of_an_open_run_is_told_why_no_work_is_done_again(tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path)
    state = ("--state-dir", str(tmp_path / "state"))
    assert not any("is done again" in line for line in _dry_run(run_file, *state))
    (note,) = [line for line in _dry_run(run_file, *state, "--open") if line.startswith("note: ")]
    assert "fewer than 16 steps a round, and no work is done again" in note
    run_file.write_text(run_file.read_text() + 'codec = "topk"\n')
    (note,) = [line for line in _dry_run(run_file, *state, "--open") if line.startswith("note: ")]
    assert "nobody does strangers' work again, so it counts unseen: contributions are sparse" in note
