from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, seal
from protocol.ids import CommitId, Root, RunId
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.milestones import (
    MAX_MILESTONE_BYTES,
    MILESTONE_DOMAIN,
    MilestoneBook,
    SignedMilestone,
    open_milestone,
    seal_milestone,
)
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.messages.start import Milestone
from protocol.rounds.messages.wire import encode_body, encode_record
from tests.protocol.rounds.made_commits import certified, lineage_on, signed_record
from tests.protocol.rounds.round_table import RUN_ID, Table
from tests.simulation.signing import HashSigner, HashVerifier

HOST = HashSigner(b"host")
ROOT = Root(b"r" * 32)
CHECK = SignatureCheck(HashVerifier(), RUN_ID)


def _record(link: ChainLink) -> bytes:
    assert link.record is not None
    return encode_record(link.record)


def _links(length: int = 6, salt: int = 0) -> tuple[Table, list[ChainLink]]:
    table = Table(3)
    return table, [made.link for made in lineage_on(table.genesis, table.live(), length, salt=salt)]


def _opened(sealed: bytes, genesis: CommitId) -> SignedMilestone:
    return open_milestone(sealed, check=CHECK, host_public_key=HOST.public_key, genesis=genesis)


def _signed(table: Table, link: ChainLink) -> SignedMilestone:
    sealed = seal_milestone(HOST, RUN_ID, Milestone(table.genesis.commit, _record(link), ROOT))
    return _opened(sealed, table.genesis.commit)


def _at(links: list[ChainLink]) -> Callable[[int], CommitId | None]:
    return lambda index: links[index - 1].commit if 0 < index <= len(links) else None


def _nowhere(_index: int) -> CommitId | None:
    return None


def test_a_milestone_gives_the_link_from_which_certificates_are_verified_as_from_their_own_parent() -> None:
    table = Table(3)
    first = certified(table.genesis, signed_record(table.genesis, table.live()), table.live())
    second = certified(first.link, signed_record(first.link, table.live()), table.live())
    milestone = _signed(table, first.link)
    assert (milestone.link, milestone.link.record, milestone.state_root) == (first.link, first.link.record, ROOT)
    link = verify_certificate(second.certificate, milestone.link, verifier=HashVerifier(), run_id=RUN_ID)
    assert link == second.link


def test_a_milestone_of_another_signer_run_or_start_is_refused_in_one_line() -> None:
    table, links = _links()
    content = Milestone(table.genesis.commit, _record(links[2]), ROOT)
    member = table.live()[0].signer
    cases = {
        "host signed": seal_milestone(member, RUN_ID, content),
        "of run": seal_milestone(HOST, RunId(bytes(32)), content),
        "another start|with start": seal_milestone(HOST, RUN_ID, replace(content, genesis=CommitId(b"g" * 32))),
        "numbered 9": seal(HOST, MILESTONE_DOMAIN, RUN_ID, 9, NEVER_MS, encode_body(content)),
        "an envelope for": seal(HOST, "potluck round", RUN_ID, 3, NEVER_MS, encode_body(content)),
        "signature": seal_milestone(HOST, RUN_ID, content)[:-1] + b"x",
        "at most": bytes(MAX_MILESTONE_BYTES + 1),
    }
    for words, sealed in cases.items():
        with pytest.raises(RemoteProtocolError, match=words) as refused:
            _opened(sealed, table.genesis.commit)
        assert "\n" not in refused.value.one_line()


@pytest.mark.parametrize("record", [b"", b"no record"])
def test_a_milestone_without_a_record_is_refused(record: bytes) -> None:
    table, _ = _links()
    payload = encode_body(Milestone(table.genesis.commit, record, ROOT))
    with pytest.raises(RemoteProtocolError):
        _opened(seal(HOST, MILESTONE_DOMAIN, RUN_ID, 0, NEVER_MS, payload), table.genesis.commit)
    with pytest.raises(RemoteProtocolError, match="state_root"):
        Milestone(table.genesis.commit, record, Root(b"short"))


def test_a_book_takes_newer_milestones_and_one_that_it_has_changes_nothing() -> None:
    table, links = _links()
    early, late = _signed(table, links[1]), _signed(table, links[4])
    book = MilestoneBook().with_one(early, _nowhere).with_one(late, _at(links))
    assert book.held == (early, late)
    assert book.newest is late
    assert MilestoneBook().newest is None
    assert book.with_one(early, _nowhere) is book


def test_an_older_milestone_is_refused_by_name() -> None:
    table, links = _links()
    book = MilestoneBook().with_one(_signed(table, links[4]), _nowhere)
    with pytest.raises(RemoteProtocolError, match="an older milestone, of round 2"):
        book.with_one(_signed(table, links[1]), _at(links))


def test_a_milestone_that_contradicts_our_certificates_or_an_earlier_one_is_refused_by_name() -> None:
    (table, links), (_, others) = _links(), _links(salt=1)
    with pytest.raises(RemoteProtocolError, match="as our certificates say"):
        MilestoneBook().with_one(_signed(table, others[2]), _at(links))
    book = MilestoneBook().with_one(_signed(table, links[2]), _nowhere)
    with pytest.raises(RemoteProtocolError, match="as an earlier milestone says"):
        book.with_one(_signed(table, others[2]), _nowhere)
    assert book.held[0].link == links[2]


def test_a_lineage_begins_at_the_newest_milestone_that_is_on_it_and_old_enough() -> None:
    (table, links), (_, others) = _links(), _links(salt=1)
    on, beside, late = _signed(table, links[1]), _signed(table, others[2]), _signed(table, links[4])
    book = MilestoneBook((on, beside, late))
    assert book.behind(6, _at(links)) is late
    assert book.behind(4, _at(links)) is on, "the one of round 3 is of another lineage"
    assert book.behind(1, _at(links)) is None
    assert book.since(3).held == (beside, late)
    assert book.since(2) is book
