"""Documents find their experts: the same everywhere, evenly, and by what they are about."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from averaging.data.packing.document_features import Embeddings, fit_embeddings, gram_features
from averaging.data.packing.document_router import (
    DocumentRouter,
    fit_router,
    router_from_bytes,
    router_root,
)
from averaging.data.sources.corpus import python_stdlib_documents, python_topics
from averaging.data.tokenizer import ByteTokenizer
from protocol.errors import ConfigError
from protocol.ids import Root
from tests.instruction_sets import without

ROOT = Path(__file__).parents[4]
CODE = [
    document.path.read_bytes() for document in python_stdlib_documents()[:120] if document.path.stat().st_size > 500
]
PROSE = [text.encode() for text in python_topics() if len(text) > 500][: len(CODE)]


@pytest.fixture(scope="module")
def router() -> DocumentRouter:
    return fit_router([*CODE[::2], *PROSE[::2]], 2)


def test_code_and_prose_find_their_own_experts_though_they_were_never_seen(router: DocumentRouter) -> None:
    code = [router.nearest(text)[0] for text in CODE[1::2]]
    prose = [router.nearest(text)[0] for text in PROSE[1::2]]
    of_code = round(sum(code) / len(code))
    assert code.count(of_code) > 0.8 * len(code)
    assert prose.count(1 - of_code) > 0.8 * len(prose)


@pytest.mark.parametrize("num_experts", [2, 3, 5])
def test_experts_get_about_as_many_documents_each(num_experts: int) -> None:
    documents = [*CODE, *PROSE[: len(CODE) // 4]]
    router = fit_router(documents, num_experts)
    counts = np.bincount([router.nearest(text)[0] for text in documents], minlength=num_experts)
    assert counts.min() > 0.5 * len(documents) / num_experts


def test_a_documents_experts_are_in_order_and_each_once(router: DocumentRouter) -> None:
    first, second = router.nearest(CODE[0], 2)
    assert {first, second} == {0, 1}
    assert router.nearest(CODE[0]) == (first,)
    with pytest.raises(ConfigError, match="3 experts of a document; expected 1 to 2"):
        router.nearest(CODE[0], 3)


def _embeddings(seed: int) -> Embeddings:
    """Of a model with 32 values a token, as a run of this seed begins with."""
    values_VD = np.random.default_rng(seed).standard_normal((ByteTokenizer.vocab_size, 32)).astype(np.float32)
    return fit_embeddings(values_VD, f"seed {seed}", [*CODE[::2], *PROSE[::2]], ByteTokenizer())


@pytest.fixture(scope="module")
def by_embeddings() -> DocumentRouter:
    return fit_router([*CODE[::2], *PROSE[::2]], 2, embeddings=_embeddings(1))


_ASSIGN = """
import sys, hashlib
from pathlib import Path
from tests.instruction_sets import check_off
check_off()
from averaging.data.sources.corpus import python_stdlib_documents
from averaging.data.packing.document_router import router_from_bytes, router_root
from averaging.data.tokenizer import ByteTokenizer
chosen = []
for features in ("grams", "embeddings"):
    data = (Path(sys.argv[1]) / features).read_bytes()
    router = router_from_bytes(data, router_root(data), 2, features=features, tokenizer=ByteTokenizer())
    chosen += [router.nearest(d.path.read_bytes(), 2) for d in python_stdlib_documents()[:200] if d.path.stat().st_size]
print(hashlib.sha256(repr(chosen).encode()).hexdigest())
"""


def test_every_process_thread_count_and_instruction_set_chooses_the_same_experts(
    router: DocumentRouter, by_embeddings: DocumentRouter, tmp_path: Path
) -> None:
    (tmp_path / "grams").write_bytes(router.to_bytes())
    (tmp_path / "embeddings").write_bytes(by_embeddings.to_bytes())
    plain = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    few = {**os.environ, "OPENBLAS_NUM_THREADS": "4", **without()}
    hashes = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _ASSIGN, str(tmp_path)],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=300.0,
        ).stdout
        for environment in (plain, few)
    }  # fmt: skip
    assert len(hashes) == 1
    assert len(hashes.pop().strip()) == 64


def test_code_and_prose_find_their_own_experts_by_embeddings_too(by_embeddings: DocumentRouter) -> None:
    code = [by_embeddings.nearest(text)[0] for text in CODE[1::2]]
    prose = [by_embeddings.nearest(text)[0] for text in PROSE[1::2]]
    of_code = round(sum(code) / len(code))
    assert code.count(of_code) > 0.8 * len(code)
    assert prose.count(1 - of_code) > 0.8 * len(prose)


def test_a_router_file_of_embeddings_comes_back_with_them_and_only_where_the_manifest_says_so(
    router: DocumentRouter, by_embeddings: DocumentRouter
) -> None:
    data = by_embeddings.to_bytes()
    again = router_from_bytes(data, by_embeddings.root, 2, features="embeddings", tokenizer=ByteTokenizer())
    assert again.to_bytes() == data
    assert [again.chosen(text)[0] for text in CODE] == [by_embeddings.chosen(text)[0] for text in CODE]
    assert again.embeddings is not None
    assert again.embeddings.origin == "seed 1"
    with pytest.raises(ConfigError, match=r"begins .*tokens.*; expected .*4096"):
        router_from_bytes(data, by_embeddings.root, 2)
    with pytest.raises(ConfigError, match=r"begins .*4096.*; expected .*tokens"):
        router_from_bytes(router.to_bytes(), router.root, 2, features="embeddings")
    for wrong in (data[:-1], data + b"0", data.replace(b'"tokens": 257', b'"tokens": 256')):
        with pytest.raises(ConfigError, match=r"a router file with \d+ bytes after its first line; expected \d+ of 2"):
            router_from_bytes(wrong, router_root(wrong), 2, features="embeddings")


def test_a_router_file_comes_back_as_it_was_and_another_than_the_manifests_is_refused(router: DocumentRouter) -> None:
    data = router.to_bytes()
    again = router_from_bytes(data, router.root, 2)
    assert again.to_bytes() == data
    with pytest.raises(ConfigError, match="as the manifest says"):
        router_from_bytes(data, Root(bytes(32)), 2)
    with pytest.raises(ConfigError, match='"experts": 3'):
        router_from_bytes(data, router.root, 3)


@pytest.mark.parametrize("cut", [0, 5, 50])
def test_a_router_file_of_another_form_is_refused(router: DocumentRouter, cut: int) -> None:
    wrong = router.to_bytes()[:cut]
    with pytest.raises(ConfigError, match="a router file that begins"):
        router_from_bytes(wrong, router_root(wrong), 2)


def test_a_router_file_that_was_cut_is_said_to_be_too_short(router: DocumentRouter) -> None:
    whole = router.to_bytes()
    num_bytes = len(whole) - whole.index(b"\n") - 1
    said = f"a router file with {num_bytes - 5} bytes after its first line; expected {num_bytes} of 2 experts; copy it"
    with pytest.raises(ConfigError, match=said):
        router_from_bytes(whole[:-5], router_root(whole[:-5]), 2)


@pytest.mark.parametrize("text", [b"", b" \n\t ", bytes(range(128, 256)) * 20])
def test_what_is_no_text_has_no_expert(router: DocumentRouter, text: bytes) -> None:
    with pytest.raises(ConfigError, match="a document that is"):
        router.nearest(text)


def test_a_letter_that_the_prefix_cuts_is_no_fault_and_a_short_text_has_features() -> None:
    assert gram_features("ä".encode() * 4095 + b"x").any()
    assert gram_features(b"x" + "ä".encode() * 4095).any()
    assert gram_features(b"ab").sum() > 0


def test_those_that_a_second_expert_is_nearest_to_have_two() -> None:
    documents = [*CODE[::3], *PROSE[::3]]
    router = fit_router(documents, 3, overlap=0.25)
    choices = [router.choices(text) for text in documents]
    assert sum(len(choice) == 2 for choice in choices) == pytest.approx(0.25 * len(documents), abs=1)
    assert all(choice == router.nearest(text, len(choice)) for choice, text in zip(choices, documents, strict=True))
    second = [int(np.sort(router.chosen(text)[1])[1]) for text in documents]
    assert max(s for s, c in zip(second, choices, strict=True) if len(c) == 2) <= router.second_within
    assert router_from_bytes(router.to_bytes(), router.root, 3).second_within == router.second_within
    alone = fit_router(documents, 3)
    assert all(len(alone.choices(text)) == 1 for text in documents)


def test_more_experts_than_documents_cannot_be_fitted() -> None:
    with pytest.raises(ConfigError, match="3 experts for 2 documents"):
        fit_router(CODE[:2], 3)
