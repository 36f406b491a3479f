"""The daemon knows each card by what its process tells."""

from __future__ import annotations

from peer.training.plan.card_plan import FLOAT32
from peer.training.plan.card_report import CardReport
from peer.training.supervision.cards_told import CardsTold


def test_each_card_has_its_own_facts_and_an_equal_share_of_what_the_replica_does() -> None:
    cards = CardsTold(("cuda:2", "cuda:5"))
    report = CardReport(plan=FLOAT32, kind="cuda", used_bytes=7)
    cards.take(1, "GPU-5", report)
    cards.take(1, None, None)
    first, second = cards.states(3000.0, 500)
    assert (first.device, first.uuid, first.rank, first.report) == ("cuda:2", None, 0, None)
    assert (second.device, second.uuid, second.rank, second.report) == ("cuda:5", "GPU-5", 1, report)
    assert [(each.tokens_per_s, each.tokens_trained) for each in (first, second)] == [(1500.0, 250.0)] * 2


def test_a_reason_names_its_card_where_there_are_several() -> None:
    assert CardsTold(("cuda:2", "cuda:5")).named(1, "out of memory") == "card 5: out of memory"
    assert CardsTold(("cpu", "cpu")).named(1, "out of memory") == "card 1: out of memory"
    assert CardsTold(("cuda:2",)).named(0, "out of memory") == "out of memory"
