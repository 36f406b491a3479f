"""The daemon knows each card by what its process tells."""

from __future__ import annotations

from peer.training.plan.card_plan import FLOAT32
from peer.training.plan.card_report import CardReport
from peer.training.plan.layout import Mesh, World
from peer.training.supervision.replica_cards import ReplicaCards


def test_each_card_has_its_own_facts_and_an_equal_share_of_what_the_replica_does() -> None:
    cards = ReplicaCards(("cuda:2", "cuda:5"))
    report = CardReport(plan=FLOAT32, kind="cuda", used_bytes=7)
    cards.take(1, "GPU-5", report)
    cards.take(1, None, None)
    first, second = cards.states(3000.0, 500)
    assert (first.device, first.uuid, first.rank, first.report) == ("cuda:2", None, 0, None)
    assert (second.device, second.uuid, second.rank, second.report) == ("cuda:5", "GPU-5", 1, report)
    assert [(each.tokens_per_s, each.tokens_trained) for each in (first, second)] == [(1500.0, 250.0)] * 2


def test_a_lost_card_and_one_without_a_place_are_left_out_and_the_others_move_up() -> None:
    cards = ReplicaCards(("cuda:0", "cuda:1", "cuda:2", "cuda:3"))
    asked: list[tuple[str, ...]] = []

    def choose(left: tuple[str, ...]) -> World | None:
        asked.append(left)
        return None if len(asked) == 1 else World(devices=("cuda:0", "cuda:3"), mesh=Mesh(shard=2))

    assert cards.go_on(1, "the card is lost", choose) is None
    assert len(cards.devices) == 4, "nothing is changed"
    assert cards.go_on(1, "the card is lost", choose) is not None
    assert asked == [("cuda:0", "cuda:2", "cuda:3")] * 2
    cards.take(1, "GPU-3", None)
    assert (cards.devices, cards.named(1, "hot")) == (("cuda:0", "cuda:3"), "card 3: hot")
    states = cards.states(1000.0, 400)
    assert [state.left_out for state in states] == [
        "",
        "the card is lost",
        "no place in the replica without card 1",
        "",
    ]
    assert [state.tokens_per_s for state in states] == [500.0, 0.0, 0.0, 500.0]
    assert (states[3].rank, states[3].uuid) == (3, "GPU-3"), "the owner knows it by its place"
    cards.go_on(0, "lost too", lambda left: World(devices=("cpu",)))
    cards.take(0, "", None)
    assert all(state.left_out for state in cards.states(1000.0, 400))


def test_a_card_that_is_back_and_one_that_is_new_have_their_places_and_the_owner_sees_no_reason() -> None:
    cards = ReplicaCards(("cuda:0", "cuda:1"))
    cards.go_on(1, "the card is lost", lambda left: World(devices=left))
    cards.come_back(World(devices=("cuda:0", "cuda:1", "cuda:2"), mesh=Mesh(shard=3)))
    cards.take(2, "GPU-2", None)
    states = cards.states(300.0, 30)
    assert [(state.device, state.left_out, state.tokens_per_s) for state in states] == [
        ("cuda:0", "", 100.0),
        ("cuda:1", "", 100.0),
        ("cuda:2", "", 100.0),
    ]
    assert states[2].uuid == "GPU-2"
    on_cpu = ReplicaCards(("cuda:0",))
    on_cpu.go_on(0, "the card is lost", lambda left: World(devices=("cpu",)))
    on_cpu.come_back(World(devices=("cuda:0",)))
    assert [state.left_out for state in on_cpu.states(1.0, 1)] == [""]


def test_a_reason_names_its_card_where_there_are_several() -> None:
    assert ReplicaCards(("cuda:2", "cuda:5")).named(1, "out of memory") == "card 5: out of memory"
    assert ReplicaCards(("cpu", "cpu")).named(1, "out of memory") == "card 1: out of memory"
    assert ReplicaCards(("cuda:2",)).named(0, "out of memory") == "out of memory"
