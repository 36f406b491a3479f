"""Documents of a corpus are sent to experts: each to its own, some to a second, and to every expert enough of them."""

from __future__ import annotations

from collections import Counter

import pytest

from averaging.data.packing.document_features import PREFIX_BYTES
from averaging.data.packing.document_router import fit_router
from averaging.data.packing.document_routing import Routing, route_documents, route_with, without_empty
from averaging.data.sources.texts import Text
from protocol.errors import ConfigError

CODE = [f"def function_{n}(self) -> None:\n    return self.values[{n}]\n".encode() * 3 for n in range(40)]
PROSE = [f"The reader of chapter {n} will find that there is nothing to see. ".encode() * 3 for n in range(40)]


def _texts() -> list[Text]:
    """Code and prose in turn; every eighth of each is kept for evaluation."""
    pairs = zip(CODE, PROSE, strict=True)
    return [Text(data, "heldout" if n % 8 == 7 else "train") for n, pair in enumerate(pairs) for data in pair]


def _counts(routing: Routing) -> Counter[int]:
    return Counter(expert for choice in routing.choices for expert in choice)


def test_each_kind_of_text_has_an_expert_and_what_is_measured_has_one_alone() -> None:
    routing = route_documents(_texts, 2, overlap=0.25)
    own = [choice[0] for choice in routing.choices]
    assert set(own[::2]) != set(own[1::2])
    assert {len(set(own[::2])), len(set(own[1::2]))} == {1}
    heldout = [choice for choice, text in zip(routing.choices, _texts(), strict=True) if text.split == "heldout"]
    assert {len(choice) for choice in heldout} == {1}
    shared = sum(len(choice) == 2 for choice in routing.choices)
    assert 0.15 * 70 < shared < 0.35 * 70
    assert all(routing.router.nearest(text.data)[0] == first for text, first in zip(_texts(), own, strict=True))


def test_without_overlap_every_document_is_one_experts() -> None:
    assert {len(choice) for choice in route_documents(_texts, 2, overlap=0.0).choices} == {1}


def test_the_order_of_the_documents_changes_neither_router_nor_choices() -> None:
    one = route_documents(_texts, 2)
    other = route_documents(lambda: _texts()[::-1], 2)
    assert other.router.to_bytes() == one.router.to_bytes()
    assert list(other.choices) == list(one.choices)[::-1]


def test_an_expert_with_too_few_documents_gets_the_nearest_of_the_others() -> None:
    router = fit_router([*CODE, *PROSE], 2)
    of_prose = router.nearest(PROSE[0])[0]
    lone = [Text(data, "train") for data in (*CODE, PROSE[0])]
    routing = route_with(router, lambda: lone, least_documents=9)
    assert _counts(routing)[of_prose] == 9
    added = [number for number, choice in enumerate(routing.choices) if len(choice) == 2]
    distances = sorted(int(router.chosen(text)[1][of_prose]) for text in CODE)
    assert sorted(int(router.chosen(CODE[number])[1][of_prose]) for number in added) == distances[:8]


def test_a_document_in_pieces_is_known_by_its_beginning() -> None:
    pieces = [Text(data[i : i + 40], split, is_last=i + 40 >= len(data))
              for data, split in ((text.data, text.split) for text in _texts())
              for i in range(0, len(data), 40)]  # fmt: skip
    assert route_documents(lambda: pieces, 2).choices == route_documents(_texts, 2).choices


@pytest.mark.parametrize(
    ("data", "said"), [(b"", "document 81 is empty"), (b"\x80\x81" * 40, "document 81 is no text")]
)
@pytest.mark.parametrize("split", ["train", "heldout", "prose"])
def test_a_document_that_is_empty_or_no_text_is_named(data: bytes, said: str, split: str) -> None:
    with pytest.raises(ConfigError, match=f"data: {said}.*leave it out"):
        route_documents(lambda: [*_texts(), Text(data, split)], 2)


def test_fewer_documents_than_each_expert_is_to_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="70 documents to train on; expected at least 71"):
        route_documents(_texts, 2, least_documents=71)


def test_empty_documents_are_left_out_where_that_is_asked_for() -> None:
    texts = [
        Text(b"a", "train", is_last=False),
        Text(b"", "train"),
        Text(b"", "train"),
        Text(b" \n", "train", is_last=False),
        Text(b"\n", "train"),
        Text(b" ", "heldout", is_last=False),
        Text(b"b", "heldout"),
    ]
    assert list(without_empty(texts)) == [*texts[:2], *texts[5:]]
    long_blank = [Text(b" " * PREFIX_BYTES, "train", is_last=False), Text(b"  ", "train")]
    assert list(without_empty([*long_blank, *texts])) == [*long_blank, *texts[:2], *texts[5:]]
