from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from averaging.data import vocabulary
from averaging.data.packing.read_back import ReadBackTokenizer
from averaging.data.sources.texts import Text
from averaging.data.tokenizer import ByteTokenizer, within
from averaging.data.vocabulary import FileTokenizer, open_tokenizer, train_bpe
from protocol.errors import ConfigError, MachineError
from protocol.run.data_section import DataSection

TEXTS = [Text(f"potluck trains one model, größer than {number} others\n".encode(), "train") for number in range(300)]
WORDS = json.dumps(
    {
        "version": "1.0",
        "added_tokens": [{"id": 3, "content": "[STOP]", "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"pot": 0, "luck": 1, "[UNK]": 2, "[STOP]": 3}, "unk_token": "[UNK]"},
    }
)  # fmt: skip
TRAIN = """
import sys
from hashlib import sha256
from tests.averaging.data.test_vocabulary import TEXTS
from averaging.data.vocabulary import train_bpe
print(sha256(train_bpe(TEXTS, 400).file).hexdigest())
"""


def test_two_trainings_give_identical_files() -> None:
    found = set()
    for seed, threads in (("1", "1"), ("2", "4")):
        environment = {"PYTHONPATH": ".", "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True, check=True
        )
        found.add(done.stdout)
    assert len(found) == 1


def test_trained_tokens_are_fewer_than_bytes_and_give_every_text_back() -> None:
    tokenizer = train_bpe(TEXTS, 400)
    assert 257 < tokenizer.vocab_size <= 400
    text = "potluck trains \U0001f642 größer\x00\n\n  than 5"
    tokens = tokenizer.encode(text.encode())
    assert len(tokens) < len(text.encode())
    assert tokenizer.end not in tokens
    assert tokenizer.decode(tokens) == text
    assert len(tokenizer.encode(b"")) == 0


def test_each_end_mark_is_decoded_as_a_line_break_wherever_it_stands() -> None:
    tokenizer = train_bpe(TEXTS, 400)
    text, end = "two words", tokenizer.end
    tokens = tokenizer.encode(text.encode()).tolist()
    for marked, expected in (
        ([*tokens, end, *tokens], f"{text}\n{text}"),
        ([end, *tokens, end, end], f"\n{text}\n\n"),
        ([end], "\n"),
        ([], ""),
    ):
        assert tokenizer.decode(np.array(marked, dtype=np.uint32)) == expected


def test_a_text_cannot_write_an_end_mark() -> None:
    tokenizer = train_bpe(TEXTS, 300)
    assert tokenizer.end not in tokenizer.encode(b"a<|end|>b")


def test_only_the_training_part_is_learned_from_and_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [Text(b"zebra zebra " * 50, "heldout"), Text(b"zebra zebra " * 50, "prose")]
    assert train_bpe([*others, *TEXTS], 400).file == train_bpe(TEXTS, 400).file
    monkeypatch.setattr(vocabulary, "_TRAINED_BYTES", sum(len(text.data) for text in TEXTS))
    assert train_bpe([*TEXTS, Text(b"zebra zebra " * 50, "train")], 400).file == train_bpe(TEXTS, 400).file


def test_a_long_text_is_encoded_in_pieces_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "_ENCODED_BYTES", 10)
    tokenizer = train_bpe(TEXTS, 400)
    text = "größer \U0001f642\U0001f642\n" * 30
    assert tokenizer.decode(tokenizer.encode(text.encode())) == text


def _open(folder: Path, name: str, vocab_size: int, **keys: str) -> object:
    return open_tokenizer(DataSection(tokenizer=name, **keys), folder, TEXTS, vocab_size)


def test_each_name_opens_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "words.json").write_text(WORDS)
    assert isinstance(_open(tmp_path, "bytes", 257), ByteTokenizer)
    assert isinstance(_open(tmp_path, "bpe", 300), FileTokenizer)
    words = _open(tmp_path, "words.json", 4, end_token="[STOP]")
    assert isinstance(words, FileTokenizer)
    assert (words.vocab_size, words.end, words.file) == (4, 3, WORDS.encode())
    assert words.encode(b"pot luck pan").tolist() == [0, 1, 2]
    assert FileTokenizer(WORDS.encode(), "words.json", 1).end == 1


@pytest.mark.parametrize(
    ("name", "vocab_size", "said"),
    [
        ("bytes", 256, "model.vocab_size is 256; expected at least 257, the tokens of data.tokenizer 'bytes'"),
        ("bpe", 256, "model.vocab_size is 256; expected at least 257"),
        ("words.json", 3, r"model.vocab_size is 3; expected at least 4, the tokens of data.tokenizer 'words\.json'"),
    ],
)
def test_a_vocabulary_that_does_not_fit_the_model_is_refused(
    tmp_path: Path, name: str, vocab_size: int, said: str
) -> None:
    (tmp_path / "words.json").write_text(WORDS)
    with pytest.raises(ConfigError, match=said):
        _open(tmp_path, name, vocab_size, **({"end_token": "[STOP]"} if name == "words.json" else {}))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is no JSON, cut off, or has"),
        (WORDS.encode()[:-40], "it is no JSON, cut off, or has"),
        (b"\xff\xfe\x00", "it is no JSON, cut off, or has"),
        (b"[" * 100_000, "it is no JSON, cut off, or has"),
        (b"[1, 2]", "it names no model"),
        (b'{"vocab_size": 5}', "it names no model"),
        (b'{"model": {"type": "Abacus"}}', "is no tokenizer: "),
        (WORDS.encode().replace(b"[STOP]", b"[WEIRD]"), "has no end mark of a usual name.*data.end_token"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_one_clear_line(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "t.json").write_bytes(data)
    with pytest.raises(ConfigError, match=rf"t\.json .*{said}") as caught:
        _open(tmp_path, "t.json", 500)
    assert "\n" not in caught.value.one_line()


def test_a_file_that_is_gone_or_too_large_or_lacks_the_end_token_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MachineError, match=r"gone\.json cannot be read: No such file"):
        _open(tmp_path, "gone.json", 500)
    (tmp_path / "device.json").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"device\.json is a device"):
        _open(tmp_path, "device.json", 500)
    (tmp_path / "t.json").write_text(WORDS)
    with pytest.raises(ConfigError, match=r"has no token '<end>'.*name it in data\.end_token"):
        _open(tmp_path, "t.json", 500, end_token="<end>")
    monkeypatch.setattr(vocabulary, "MAX_TOKENIZER_BYTES", 100)
    with pytest.raises(ConfigError, match="larger than"):
        _open(tmp_path, "t.json", 500)


def test_without_the_library_the_command_that_installs_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    for make in (lambda: train_bpe(TEXTS, 300), lambda: FileTokenizer(WORDS.encode(), "t.json")):
        with pytest.raises(MachineError, match=r'tokenizers is not installed; .*pip install "potluck-train\[hf\]"'):
            make()


def _prepending() -> FileTokenizer:
    """Writes a space before each text, as those of the Llama 2 family do."""
    letters = [chr(number) for number in range(33, 127)] + ["▁", "\n", "\t"]
    vocab = {"<unk>": 0, "</s>": 1, **{letter: number + 2 for number, letter in enumerate(letters)}}
    rules = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True))
    rules.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    rules.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return FileTokenizer(rules.to_str().encode(), "tokenizer.json")


def test_text_of_two_lines_has_the_tokens_of_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "_ENCODED_BYTES", 4)
    tokenizer, text = _prepending(), "Q: one\nA: two"
    assert tokenizer.decode(tokenizer.encode(text.encode())) == text
    whole = Tokenizer.from_str((tokenizer.file or b"").decode()).encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text.encode()).tolist() == whole
    indented = train_bpe([Text(b"if a:\n    b\n" * 20, "train")], 280)
    deep = "if a:\n        b\n    c\n\n  d"
    whole = Tokenizer.from_str((indented.file or b"").decode()).encode(deep, add_special_tokens=False).ids
    assert indented.encode(deep.encode()).tolist() == whole


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        (models.WordPiece({"hello": 0, "[SEP]": 1}, unk_token="[UNK]"), "Missing"),
        (models.WordLevel({"hello": 0, "</s>": 1}, unk_token="<unk>"), "Missing"),
        (models.Unigram([("hello", -1.0), ("</s>", -2.0)], None), "unk_id"),
        (models.BPE({"h": 0, "e": 1, "</s>": 2, "l": 3, "o": 4}, [], unk_token="<unk>"), "Unk token"),
    ],
    ids=["wordpiece", "wordlevel", "unigram", "bpe"],
)
def test_word_that_a_tokenizer_has_no_token_for_is_named_with_its_line(model: models.Model, cause: str) -> None:
    rules = Tokenizer(model)
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = FileTokenizer(rules.to_str().encode(), "words.json")
    place = (
        "line 1: words.json has no token for 'hello'"
        if cause == "unk_id"
        else "line 2: words.json has no token for 'world'"
    )
    with pytest.raises(ConfigError, match=rf"a text {place} \(.*{cause}.*data\.tokenizer"):
        tokenizer.encode(b"hello\nhello world\n")


def test_bpe_of_bytes_alone_is_refused_since_it_would_learn_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'vocab_size is 257 with data\.tokenizer = "bpe"; expected more'):
        _open(tmp_path, "bpe", 257)


def test_merges_are_not_left_out_at_random(tmp_path: Path) -> None:
    values = json.loads(train_bpe(TEXTS, 400).file or b"")
    values["model"]["dropout"] = 0.9
    tokenizer = FileTokenizer(json.dumps(values).encode(), "it")
    assert len({tuple(tokenizer.encode(TEXTS[0].data)) for _ in range(10)}) == 1


def test_a_marked_text_has_its_special_tokens_and_a_token_counts_if_a_part_of_it_does() -> None:
    tokenizer = train_bpe([Text(b"hello there, hello you " * 50, "train")], 300)
    text = "hé hello<|end|>you".encode()
    spans = ((1, 3), (text.index(b"lo<"), text.index(b"you")))  # é, and from within a word to the special token
    tokens, counted = tokenizer.encode_marked(text, spans)
    assert tokenizer.decode_marked(tokens) == text.decode()
    assert (tokens == tokenizer.end).sum() == 1
    assert tokenizer.end not in tokenizer.encode(text), "elsewhere it is text"
    found = tokenizer.decode_marked(tokens[counted])
    assert found.startswith("é")
    assert found.endswith("lo<|end|>")
    assert "you" not in found
    back = ReadBackTokenizer(tokenizer)
    assert back.encode_marked(text, spans)[1].tolist() == counted.tolist()
    assert back.loss == ""


KINDS = {
    "bytes in merges": train_bpe([Text("hello there, größer 🐈 you ".encode() * 50, "train")], 300).file or b"",
    "words, and nothing of white space": WORDS.encode(),
    "prefixes of words": json.dumps(
        {
            "version": "1.0",
            "normalizer": {"type": "Lowercase"},
            "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True},
            "model": {
                "type": "Unigram",
                "unk_id": 0,
                "vocab": [["<unk>", 0.0], ["_", -1.0], ["_he", -2.0], ["llo", -2.0]],
            },
        }
    ).encode(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(20))
def test_tokens_that_count_are_those_with_a_part_in_a_span_by_all_their_places(kind: str, seed: int) -> None:
    drawn = random.Random(seed)
    tokenizer = FileTokenizer(KINDS[kind], "it", end=0)
    letters = "".join(drawn.choices(["hello ", "pot", "luck", "é", "🐈", "  ", "[STOP]", "<|end|>", "\n", "x"], k=40))
    cuts = sorted(drawn.sample(range(len(letters) + 1), 8))
    spans = [(begin, end) for begin, end in zip(cuts[::2], cuts[1::2], strict=True) if begin < end]
    rules = Tokenizer.from_str(KINDS[kind].decode())
    offsets = np.array(rules.encode(letters, add_special_tokens=False).offsets or np.zeros((0, 2)), dtype=np.int64)
    expected = within(offsets[:, 0], offsets[:, 1], spans)
    in_bytes = [(len(letters[:begin].encode()), len(letters[:end].encode())) for begin, end in spans]
    tokens, counted = tokenizer.encode_marked(letters.encode(), in_bytes)
    assert len(tokens) == len(offsets)
    assert counted.tolist() == expected.tolist()
