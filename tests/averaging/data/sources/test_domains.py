"""Text of four kinds from what is installed: the same each time, bounded, and each of its own kind."""

from __future__ import annotations

from itertools import islice

import pytest

from averaging.data.sources.domains import DOMAINS, LEAST_BYTES, MOST_BYTES, domain_documents, domain_texts
from protocol.errors import ConfigError
from protocol.run.data_section import DOMAIN_NAMES

SIGNS = {"python": b"def ", "english": b" the ", "c++": b"#", "stubs": b"import "}


@pytest.mark.parametrize("domain", DOMAINS)
def test_each_domain_has_documents_of_its_kind_and_of_bounded_length(domain: str) -> None:
    documents = domain_documents(domain, 12, heldout_every=3)
    assert len(documents) == 12
    assert all(LEAST_BYTES <= len(document.data) <= MOST_BYTES for document in documents)
    assert sum(SIGNS[domain] in document.data for document in documents) >= 8
    assert {document.is_heldout for document in documents} == {True, False}
    assert domain_documents(domain, 4, heldout_every=3) == documents[:4]
    for document in documents:
        document.data.decode()


def test_documents_of_several_domains_come_in_turn() -> None:
    texts = list(islice(domain_texts(["python", "c++"], 3), 6))
    python, headers = (domain_documents(domain, 3) for domain in ("python", "c++"))
    assert [text.data for text in texts] == [d.data for pair in zip(python, headers, strict=True) for d in pair]
    assert len(list(domain_texts(["python", "c++"], 3))) == 6


def test_the_host_may_name_just_the_domains_that_there_are() -> None:
    assert tuple(DOMAINS) == DOMAIN_NAMES


def test_a_domain_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"domain 'latin'; expected one of python, english, c\+\+, stubs"):
        domain_documents("latin", 3)
