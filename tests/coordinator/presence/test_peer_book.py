from __future__ import annotations

import pytest

from coordinator.presence.peer_book import EXPECTED_S, PeerBook
from coordinator.presence.presence import FORGET_S, LIVE_S, live_peers
from protocol.host.reports import PeerReport
from protocol.ids import CommitId, PeerId, UnitName

A, B, C = (PeerId(name) for name in "abc")
HEAD, OTHER = (CommitId(bytes([number]) * 32) for number in (1, 2))


def report(head: CommitId = HEAD, state: str = "training") -> PeerReport:
    return PeerReport(state, "", UnitName("model"), head=head)


def test_the_book_counts_as_a_look_at_all_reports_does_whatever_comes() -> None:
    book, waiting = PeerBook(), CommitId(b"")
    steps = [
        (0.0, A, report()),
        (1.0, B, report(waiting)),
        (2.0, C, report(OTHER)),
        (20.0, A, report(OTHER)),
        (25.0, B, report(HEAD)),
        (LIVE_S + 3.0, C, report(state="left")),
        (LIVE_S + 21.0, C, report(waiting)),
        (90.0, B, report()),
    ]
    for now_s, peer, said in steps:
        book.hear(peer, said, now_s)
        for later_s in (now_s, now_s + 0.5):
            live = live_peers(book.entries, later_s)
            assert sorted(book.live(later_s)) == list(live)
            heads = {each: book.entries[each].report.head for each in live}
            assert book.heads(later_s) == {each: head for each, head in heads.items() if head}
            assert list(book.live_reports(later_s)) == list(live)


def test_a_peer_of_a_large_run_is_told_to_report_rarely_and_has_as_much_longer() -> None:
    book = PeerBook()
    for number in range(1000):
        book.hear(PeerId(f"peer {number}"), report(), 0.0)
    assert book.again_in_s(0.0, is_under_way=True) == 20.0
    assert PeerId("peer 999") in book.live(3 * 19.9)
    assert PeerId("peer 999") not in book.live(3 * 20.1)


def test_peers_told_to_report_rarely_stay_though_most_others_leave_at_once() -> None:
    book = PeerBook()
    for number in range(1000):
        book.hear(PeerId(f"peer {number}"), report(), 0.0)
    for number in range(999):
        book.hear(PeerId(f"peer {number}"), report(state="left"), 1.0)
    assert list(book.live(2 * LIVE_S - 1.0)) == [PeerId("peer 999")]


def test_an_admitted_peer_has_a_place_until_it_reports_or_for_a_while() -> None:
    book = PeerBook()
    assert book.expect(A, 0.0)
    assert not book.expect(A, 1.0)
    assert book.expect(B, 2.0)
    assert book.places_taken(3.0) == 2
    book.hear(A, report(), 4.0)
    assert book.places_taken(5.0) == 2
    assert not book.expect(A, 6.0)
    book.expect_no_more(B)
    assert book.places_taken(7.0) == 1
    book.expect(C, 8.0)
    assert book.places_taken(8.0 + EXPECTED_S + 1.0) == 0


def test_a_peer_that_is_long_gone_is_forgotten() -> None:
    book = PeerBook()
    book.hear(A, report(), 0.0)
    book.hear(B, report(), FORGET_S)
    book.forget(FORGET_S + 1.0)
    assert book.entries.keys() == {B}


def test_a_live_peer_of_a_very_large_run_is_not_forgotten_between_its_rare_reports() -> None:
    book = PeerBook()
    for number in range(70_000):
        book.hear(PeerId(f"peer {number}"), report(), 0.0)
    book.hear(A, report(), 1.0)
    book.forget(FORGET_S + 2.0)
    assert A in book.entries


@pytest.mark.parametrize("num_peers", [10, 10_000])
def test_a_report_looks_at_no_other_peer(num_peers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by what is asked of other entries: none, at any number of peers."""
    book = PeerBook()
    for number in range(num_peers):
        book.hear(PeerId(f"peer {number}"), report(), 0.0)
    asked: list[PeerId] = []
    entries = book._entries

    class Watched(dict):  # type: ignore[type-arg]
        def __getitem__(self, peer: PeerId) -> object:
            asked.append(peer)
            return super().__getitem__(peer)

        def get(self, peer: PeerId, default: object = None) -> object:
            asked.append(peer)
            return super().get(peer, default)

        def __iter__(self) -> object:
            raise AssertionError("all peers were looked at")

        items = values = keys = __iter__

    monkeypatch.setattr(book, "_entries", Watched(entries))
    book.hear(PeerId("peer 3"), report(OTHER), 1.0)
    assert set(asked) == {PeerId("peer 3")}
    assert len(book.heads(1.0)) == num_peers
