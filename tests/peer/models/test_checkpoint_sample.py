"""Text of a checkpoint's model, from a checkpoint as the host writes it."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from averaging.data.sources.texts import Text
from averaging.data.vocabulary import train_bpe
from coordinator.checkpoints.adapter_export import export_merged
from coordinator.checkpoints.weights_import import read_weights
from coordinator.run.run_files import RunTokenizer
from peer.models import checkpoint_sample
from peer.models.checkpoint_sample import print_text, read_model, sample_from_checkpoint, text_json
from peer.models.decode_text import sample_from
from peer.models.sampling import Sampling
from protocol.errors import ConfigError, MachineError, PotluckError, StorageError
from tests.averaging.data.chat.chat_world import chat_template, chat_tokenizer
from tests.coordinator.checkpoints.adapter_checkpoint import checkpoint_of_adapter
from tests.coordinator.checkpoints.test_checkpoints import MIXTURE, checkpoint_of, checkpoint_of_experts, decoder
from tests.peer.models.whole_models import sample_text

TWELVE = Sampling(12, seed=3)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return checkpoint_of(tmp_path, decoder())


def test_sample_starts_with_the_prompt_and_is_the_same_each_time(checkpoint: Path) -> None:
    text = sample_from_checkpoint(checkpoint, prompt="def ", num_tokens=12)
    assert text.startswith("def ")
    assert text == sample_from_checkpoint(checkpoint, prompt="def ", num_tokens=12)


def test_the_model_of_each_expert_writes_text_of_its_own(tmp_path: Path) -> None:
    path = checkpoint_of_experts(tmp_path, decoder())
    texts = {json.loads(text_json(path, "def ", TWELVE, expert))["text"] for expert in range(2)}
    assert len(texts) == 2
    assert read_model(path).config.ffn_dim == decoder().ffn_dim + MIXTURE.ffn_dim
    with pytest.raises(ConfigError, match="expert 2 of a run of 2"):
        read_model(path, 2)


def test_printed_text_and_json_say_the_same(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_text(checkpoint, "def ", TWELVE)
    found = json.loads(text_json(checkpoint, "def ", TWELVE))
    assert capsys.readouterr().out == "def " + found["text"] + "\n"
    assert (found["prompt"], found["round"], found["run"], found["seed"]) == ("def ", 3, "run", 3)
    assert found["ended"] == (found["num_sampled"] < 12)


def test_terminal_is_not_given_escape_sequences(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer.models.decode_text.sample_from", lambda *_, **__: iter(b"a\x1b[2J\r\n\tb"))
    print_text(checkpoint, "", TWELVE)
    assert capsys.readouterr().out == "a\x1b[2J\r\n\tb\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_text(checkpoint, "", TWELVE)
    assert capsys.readouterr().out == "a\ufffd[2J\ufffd\n\tb\n"


def test_output_that_knows_no_unicode_gets_a_sign_it_knows(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    print_text(checkpoint, "caf\u00e9", TWELVE)
    assert raw.getvalue().startswith(b"caf?")


def test_reader_that_goes_away_ends_the_text_and_a_full_disk_is_named(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as gone, open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", gone)
        print_text(checkpoint, "def ", TWELVE)
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(MachineError, match="No space left"):
            print_text(checkpoint, "def ", TWELVE)
        monkeypatch.undo()
        os.dup2(gone.fileno(), full.fileno())  # or closing it would try again


@pytest.fixture
def with_words(tmp_path: Path) -> Path:
    """A checkpoint of a run with a trained tokenizer."""
    trained = train_bpe([Text(b"potluck trains " * 20, "train")], 265)
    assert trained.file is not None
    return checkpoint_of(tmp_path, decoder(vocab_size=300), tokenizer=RunTokenizer(trained.file, trained.end))


def test_a_checkpoint_with_a_tokenizer_is_read_and_written_with_it(
    with_words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_text(with_words, "größer ", TWELVE)
    found = json.loads(text_json(with_words, "größer ", TWELVE))
    assert capsys.readouterr().out == "größer " + found["text"] + "\n"
    assert sample_from_checkpoint(with_words, prompt="größer ", num_tokens=8).startswith("größer ")
    model = read_model(with_words)
    assert model.tokenizer.decode(model.tokenizer.encode(b"potluck")) == "potluck"
    assert len(model.tokenizer.encode(b"potluck")) < 7


def test_a_chats_answer_is_shown_alone_and_follows_the_question_as_training_put_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = chat_tokenizer()
    tokenizer = RunTokenizer(words.file or b"", words.end)
    path = checkpoint_of(tmp_path, decoder(vocab_size=300), tokenizer=tokenizer, template=chat_template().file_bytes())
    print_text(path, "potluck?", TWELVE, is_chat=True)
    found = json.loads(text_json(path, "potluck?", TWELVE, is_chat=True))
    assert capsys.readouterr().out == found["text"] + "\n"
    assert found["prompt"] == "potluck?"
    model, asked = read_model(path), b"<|im_start|>user\npotluck?<|im_end|>\n<|im_start|>assistant\n"
    begin = words.encode_marked(asked, ())[0].tolist()
    tokens = list(sample_from(model.decoder(), prompt=begin, sampling=TWELVE, tokenizer=words))
    until = tokens.index(chat_template().end) if chat_template().end in tokens else len(tokens)
    assert found["num_sampled"] == until
    # a first token that ends an answer is the end of this one
    path = checkpoint_of(
        tmp_path / "ends",
        decoder(vocab_size=300),
        tokenizer=tokenizer,
        template=chat_template(end=tokens[0]).file_bytes(),
    )
    ended = json.loads(text_json(path, "potluck?", TWELVE, is_chat=True))
    assert (ended["text"], ended["ended"]) == ("", True)


def test_a_checkpoint_without_a_chat_template_has_no_chats(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="has no chat template; expected one of a run on chats; leave out --chat"):
        print_text(checkpoint, "a", TWELVE, is_chat=True)


def test_a_damaged_chat_template_is_said(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, decoder(), template=chat_template().file_bytes())
    (path / "chat.json").write_bytes(b"{}")
    with pytest.raises(StorageError, match=r"chat\.json has another SHA-256"):
        read_model(path)


def test_prompt_that_is_no_utf8_is_read_with_a_tokenizer_too(with_words: Path) -> None:
    assert json.loads(text_json(with_words, "caf\udce9", TWELVE))["prompt"] == "caf\ufffd"


def test_terminal_is_not_given_escape_sequences_that_are_tokens(
    with_words: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [int(token) for token in read_model(with_words).tokenizer.encode(b"potluck\x1b[2J trains")]
    monkeypatch.setattr("peer.models.decode_text.sample_from", lambda *_, **__: iter(tokens))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_text(with_words, "", TWELVE)
    assert capsys.readouterr().out == "potluck\ufffd[2J trains\n"


@pytest.mark.parametrize("data", [None, b"{}"])
def test_tokenizer_that_is_lost_or_damaged_is_named(with_words: Path, data: bytes | None) -> None:
    file = with_words / "tokenizer.json"
    file.unlink()
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(StorageError, match=r"tokenizer\.json"):
        read_model(with_words)


def test_tokenizer_that_is_none_is_named(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path, decoder(), tokenizer=RunTokenizer(b"{}", 0))
    with pytest.raises(StorageError, match=r"tokenizer\.json is no tokenizer"):
        read_model(path)


def test_model_with_fewer_tokens_than_its_tokenizer_writes_nothing(
    with_words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = RunTokenizer((with_words / "tokenizer.json").read_bytes(), 0)
    path = checkpoint_of(tmp_path / "small", decoder(), tokenizer=words)
    with pytest.raises(ConfigError, match="a vocabulary of 257"):
        print_text(path, "potluck", TWELVE)
    assert capsys.readouterr().out == ""


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


def _other_numbers(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"rope_theta": 10000.0', '"rope_theta": 10001.0'))


@pytest.mark.parametrize(
    ("damage", "error", "found"),
    [
        (lambda path: _flip(path / "fragment-0.safetensors"), StorageError, "another SHA-256"),
        (lambda path: (path / "fragment-0.safetensors").unlink(), StorageError, "fragment-0.safetensors"),
        (lambda path: os.truncate(path / "manifest.json", 100), StorageError, "its JSON"),
        (lambda path: (path / "manifest.json").write_bytes(b"{}"), StorageError, "is damaged at run_name"),
        (lambda path: (path / "manifest.json").write_bytes(b"\xff"), StorageError, "its JSON"),
        (_other_numbers, StorageError, "another checksum"),
        (lambda path: (path / "manifest.json").unlink(), ConfigError, "no checkpoint at"),
        (lambda path: _device(path / "manifest.json"), ConfigError, r"manifest\.json is a device"),
        (lambda path: _device(path / "fragment-0.safetensors"), ConfigError, r"fragment-0\.safetensors is a device"),
    ],
    ids=[
        "flipped bit",
        "no weights",
        "cut off",
        "empty object",
        "no text",
        "other numbers",
        "no manifest",
        "a device for a manifest",
        "a device for weights",
    ],
)
def test_checkpoint_that_is_damaged_or_absent_is_named_before_anything_is_printed(
    checkpoint: Path,
    damage: Callable[[Path], None],
    error: type[PotluckError],
    found: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(checkpoint)
    with pytest.raises(error, match=found):
        print_text(checkpoint, "def ", TWELVE)
    assert capsys.readouterr().out == ""


def test_model_that_lacks_a_tensor_is_named(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Digest:
        def hexdigest(self) -> str:
            return json.loads((checkpoint / "manifest.json").read_text())["parameters"]["sha256"]

    tensors: dict[str, torch.Tensor] = load_file(checkpoint / "fragment-0.safetensors")
    del tensors["norm.weight"]
    save_file(tensors, checkpoint / "fragment-0.safetensors")
    monkeypatch.setattr(checkpoint_sample, "file_digest", lambda *_: Digest())
    with pytest.raises(StorageError, match=r"norm\.weight"):
        read_model(checkpoint)


@pytest.mark.parametrize(
    "other", [lambda t: t.reshape(-1)[:3].clone(), lambda t: t.half()], ids=["another shape", "another type"]
)
def test_model_with_a_tensor_of_another_kind_is_named_and_no_bug(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, other: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    class Digest:
        def hexdigest(self) -> str:
            return json.loads((checkpoint / "manifest.json").read_text())["parameters"]["sha256"]

    tensors: dict[str, torch.Tensor] = load_file(checkpoint / "fragment-0.safetensors")
    tensors["norm.weight"] = other(tensors["norm.weight"])
    save_file(tensors, checkpoint / "fragment-0.safetensors")
    monkeypatch.setattr(checkpoint_sample, "file_digest", lambda *_: Digest())
    with pytest.raises(StorageError, match=r"norm\.weight as float32"):
        read_model(checkpoint)


def test_small_model_takes_one_thread_while_it_is_sampled_unless_the_user_says_otherwise(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    text_json(checkpoint, "def ", TWELVE)
    text_json(checkpoint, "def ", Sampling(12, threads=3))
    assert taken == [1, 7, 3, 7]


def test_text_of_an_adapter_is_that_of_its_merged_model(tmp_path: Path) -> None:
    checkpoint = checkpoint_of_adapter(tmp_path / "host", decoder())
    export_merged(checkpoint, tmp_path / "merged")
    values_N = read_weights(tmp_path / "merged", decoder())
    sampling = Sampling(12, temperature=0.0)
    expected = sample_text(decoder(), values_N, prompt="def ", sampling=sampling)
    assert json.loads(text_json(checkpoint, "def ", sampling))["text"] == expected.removeprefix("def ")
    (tmp_path / "host" / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="the base of checkpoint"):
        text_json(checkpoint, "def ", sampling)
    assert read_model(checkpoint, base=tmp_path / "elsewhere").num_values == len(values_N)
