"""Text that a tokenizer drops is counted letter by letter, and too much of it is refused."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from averaging.data.packing import read_back
from averaging.data.packing.read_back import ReadBackTokenizer
from averaging.data.sources.texts import Text
from averaging.data.vocabulary import FileTokenizer, train_bpe
from protocol.errors import ConfigError


def _letters(letters: str, unknown: str | None = None) -> ReadBackTokenizer:
    """One token for each of these letters; others are dropped, or become the unknown token."""
    vocab = {letter: number for number, letter in enumerate([*letters, "</s>", *([unknown] if unknown else [])])}
    rules = Tokenizer(models.BPE(vocab, [], unk_token=unknown))
    rules.decoder = decoders.Fuse()
    return ReadBackTokenizer(FileTokenizer(rules.to_str().encode(), "it"))


@pytest.mark.parametrize("unknown", [None, "k", "<unk>"], ids=["dropped", "unknown of one letter", "unknown"])
def test_letters_that_a_tokenizer_drops_or_does_not_know_are_told_with_their_share(unknown: str | None) -> None:
    tokenizer = _letters("abcdefghij \n", unknown)
    tokenizer.encode(b"a bad kid\n" * 50)
    assert tokenizer.loss == "the tokenizer loses 10.00% of the text: 50 of 500 letters, such as 'k'"
    tokenizer.check()
    tokenizer.encode(b"kkkk")
    with pytest.raises(ConfigError, match=r"data\.tokenizer: the tokenizer loses 10\.71%.*expected at most 10%"):
        tokenizer.check()


def test_one_letter_in_the_last_of_many_texts_is_found() -> None:
    tokenizer = _letters("abcdefghij \n")
    for _ in range(2000):
        tokenizer.encode(b"a bad hid")
    assert tokenizer.loss == ""
    tokenizer.encode("猫".encode())
    assert "1 of 18,001 letters, such as '\\u732b'" in tokenizer.loss


def test_tokenizer_that_loses_most_is_refused_before_all_text_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_back, "_EARLY_LETTERS", 100)
    tokenizer = _letters("he")
    tokenizer.encode(b"hello world")
    with pytest.raises(ConfigError, match="loses"):
        tokenizer.encode(b"hello world" * 20)


def test_text_that_comes_back_or_differs_only_in_case_or_space_is_not_refused() -> None:
    trained = ReadBackTokenizer(train_bpe([Text(b"potluck trains " * 20, "train")], 265))
    trained.encode("größer 猫 🐈\n\n \t x\x00".encode())
    trained.encode(b"")
    assert trained.loss == ""
    rules = Tokenizer(models.WordLevel({"pot": 0, "luck": 1, "</s>": 2, "[UNK]": 3}, unk_token="[UNK]"))
    rules.normalizer, rules.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit()
    words = ReadBackTokenizer(FileTokenizer(rules.to_str().encode(), "it"))
    words.encode(b"POT\n\n   LUCK\n")
    words.check()
    assert "the tokenizer loses" in words.loss
