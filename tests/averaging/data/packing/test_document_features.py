"""Features of documents are integers, and unusable embeddings are refused in one line."""

from __future__ import annotations

import numpy as np
import pytest

from averaging.data.packing.document_features import Embeddings, fit_embeddings
from averaging.data.tokenizer import ByteTokenizer, Tokens, encode_bytes
from protocol.errors import ConfigError, LocalProtocolError
from protocol.run.experts_section import MAX_EMBEDDING_FEATURES

DOCUMENTS = [b"def f(x): return x", b"A letter and another one.", "m\u00fc\u00dfig".encode()]


def _values(num_tokens: int = 257, dim: int = 16) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((num_tokens, dim))


def test_features_are_the_tokens_embeddings_by_the_roots_of_their_counts() -> None:
    embeddings = fit_embeddings(_values(), "seed 3", DOCUMENTS, ByteTokenizer())
    table_VF = embeddings.table_VF.astype(np.int64)
    expected_F = 32 * table_VF[ord("a")] + 16 * table_VF[ord("b")]
    assert embeddings.features(b"aabaa").tolist() == expected_F.tolist()


def test_what_is_common_to_all_documents_tells_nothing() -> None:
    values_VD = _values() + 100.0
    near, far = (fit_embeddings(each, "seed 3", DOCUMENTS, ByteTokenizer()) for each in (_values(), values_VD))
    assert np.abs(near.table_VF.astype(int) - far.table_VF.astype(int)).max() <= 1


def test_half_a_letter_at_the_end_of_the_prefix_counts_for_nothing() -> None:
    embeddings = fit_embeddings(_values(), "seed 3", DOCUMENTS, ByteTokenizer())
    cut, whole = "x" * 4095 + "\u00e4", "x" * 4095
    assert embeddings.features(cut.encode()).tolist() == embeddings.features(whole.encode()).tolist()


def test_of_a_wide_model_as_many_sums_are_kept_as_a_file_has_room_for() -> None:
    embeddings = fit_embeddings(_values(dim=400), "seed 3", DOCUMENTS, ByteTokenizer())
    assert embeddings.table_VF.shape == (257, MAX_EMBEDDING_FEATURES)


@pytest.mark.parametrize(
    ("values_VD", "said"),
    [
        (np.full((257, 4), np.nan), "embeddings of round 4 that are not all finite"),
        (np.ones((257, 4)), "embeddings of round 4 that are all the same"),
        (np.empty((257, 0)), "embeddings of round 4 that are not all finite"),
    ],
)
def test_embeddings_that_tell_nothing_are_refused(values_VD: np.ndarray, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fit_embeddings(values_VD, "round 4", DOCUMENTS, ByteTokenizer())


@pytest.mark.parametrize("text", [b"", b" \n\t ", bytes(range(128, 256)) * 20])
def test_what_is_no_text_has_no_features(text: bytes) -> None:
    embeddings = fit_embeddings(_values(), "seed 3", DOCUMENTS, ByteTokenizer())
    with pytest.raises(ConfigError, match="a document that is"):
        embeddings.features(text)


class _Many:
    """A tokenizer with more tokens than bytes."""

    vocab_size, end, file = 300, 299, None

    def encode(self, text: bytes) -> Tokens:
        return encode_bytes(text)


def test_a_tokenizer_with_more_tokens_or_none_at_all_is_said() -> None:
    table_VF = np.ones((257, 4), dtype=np.int8)
    with pytest.raises(ConfigError, match="embeddings of 257 tokens; expected at least 300"):
        Embeddings(table_VF, "seed 3", _Many())
    with pytest.raises(LocalProtocolError, match="asked without a tokenizer"):
        Embeddings(table_VF, "seed 3").features(b"text")
