"""The events of the run between one picture and the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.ledger.ledger import LossPoint
from coordinator.ledger.run_memory import MAX_EVENTS
from coordinator.presence.presence import LIVE_S, PeerEntry
from coordinator.progress.heldout_core import WHOLE
from coordinator.progress.run_core import Phase
from coordinator.progress.run_events import EventBook
from coordinator.progress.run_view import MissingCommits, RunPicture, TimedRound
from coordinator.progress.unit_holders import UnitHolders
from protocol.identity.chosen_name import ChosenName
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.round_row import Disagreed
from tests.coordinator.progress.test_run_view import A, B, C, peer, picture, timed

NOW_S = 100.0


def reported(*looks: RunPicture, now_s: float = NOW_S) -> list[tuple[str, str]]:
    """Kind and text of what the last look brought."""
    book, before = EventBook(), 0
    for look in looks:
        before = len(book.newest(MAX_EVENTS))
        book.note(look, now_s, 1_000)
    return [(event.kind, event.text) for event in book.newest(MAX_EVENTS)[before:]]


def with_peers(**states: str) -> RunPicture:
    ids = {"a": A, "b": B, "c": C}
    peers = {ids[key]: PeerEntry(peer(state=state), NOW_S - 1.0) for key, state in states.items()}
    return replace(picture(), peers=peers)


def at(round_: TimedRound, **changes: object) -> TimedRound:
    return replace(round_, row=replace(round_.row, **changes))  # type: ignore[arg-type]


def test_the_first_look_says_that_the_host_is_up_and_where_it_took_the_run_up() -> None:
    assert reported(picture()) == [("run", "the host restarted at round 2; nothing was lost")]
    assert reported(replace(picture(), restarted="")) == [("run", "the host is up: training")]


def test_an_expert_that_loses_its_last_holder_is_trouble_until_it_has_one_again() -> None:
    held, frozen = (
        replace(picture(), units=(UnitHolders(UnitName("expert-1"), holders, 3, not holders, kept_index=2),))
        for holders in ((A,), ())
    )
    begin = "expert-1 is frozen: no live peer holds it: it waits for a holder, which gets round 2 from here"
    assert reported(held, frozen) == [("trouble", f"{begin}; round 3 is lost unless a former holder returns")]
    assert reported(frozen, held) == [("run", "expert-1 has a holder again and goes on")]
    assert reported(frozen, frozen) == []


def test_the_end_of_a_run_is_told_after_its_last_round() -> None:
    before = picture()
    last = timed(3, 900, 120)
    over = replace(
        before,
        rounds=(*before.rounds, last),
        state=replace(before.state, phase=Phase.FINISHED),
        reason="the run is over",
    )
    assert [text.partition(":")[0] for _, text in reported(before, over)] == ["round 3", "finished"]


def test_nothing_is_told_twice() -> None:
    look = with_peers(a="training")
    assert reported(look, look) == []


@pytest.mark.parametrize(
    ("was", "now", "kind", "text"),
    [
        ({"a": "training"}, {"a": "training", "b": "joining"}, "peer", "{b} came"),
        ({"b": "joining"}, {"b": "training"}, None, None),
        ({"a": "training", "b": "training"}, {"a": "training", "b": "left"}, "peer", "{b} left"),
        ({"b": "left"}, {"b": "joining"}, "peer", "{b} came back"),
        ({"b": "training"}, {"b": "paused"}, "peer", "{b} was paused by its owner"),
        ({"b": "paused"}, {"b": "training"}, "peer", "{b} goes on"),
    ],
)
def test_coming_leaving_and_pausing_are_told(
    was: dict[str, str], now: dict[str, str], kind: str | None, text: str | None
) -> None:
    expected = [] if kind is None else [(kind, str(text).format(b=peer_name(B)))]
    assert reported(with_peers(**was), with_peers(**now)) == expected


def test_silence_is_trouble_and_its_end_is_told() -> None:
    book, look = EventBook(), with_peers(a="training")
    for now_s in (NOW_S, NOW_S + LIVE_S, NOW_S + LIVE_S + 1.0):
        book.note(look, now_s, 1_000)
    heard = replace(look, peers={A: PeerEntry(peer(), NOW_S + 40.0)})
    book.note(heard, NOW_S + 41.0, 1_041)
    assert [(e.kind, e.text, e.peer) for e in book.newest(3) if e.peer] == [
        ("trouble", f"{peer_name(A)} is not heard any more", A),
        ("peer", f"{peer_name(A)} is heard again", A),
    ]


def test_a_round_is_told_with_who_was_left_out_and_why() -> None:
    one, other = timed(3, 900, 30), CommitId(b"d" * 32)
    whole = at(one, commit=other, coverage=1.0, omitted=())
    alone = at(whole, members=(A,), shares=(1.0,), is_lone=True)
    lossy = at(whole, lost=0.056)
    assert reported(picture(), picture((at(one, commit=other),))) == [
        ("round", f"round 3: 2 counted, 90% covered; left out: {peer_name(C)} (too late)")
    ]
    assert reported(picture(), picture((whole,))) == [("round", "round 3: 2 counted")]
    assert reported(picture(), picture((lossy,))) == [("round", "round 3: 2 counted, 5.6% of the mean had no room")]
    disagreed = at(whole, disagreed=(Disagreed(A, 0.75, -0.6),))
    assert reported(picture(), picture((disagreed,))) == [
        ("round", f"round 3: 2 counted; {peer_name(A)}: {Disagreed(A, 0.75, -0.6).words}")
    ]
    assert reported(picture(), picture((alone,))) == [("trouble", "round 3: one counted; made by one peer alone")]


def test_rounds_that_a_restarted_host_reads_back_are_no_news() -> None:
    assert reported(picture(), picture((timed(1, 300, 10), timed(2, 600, 20)))) == []


MISSING = MissingCommits(A, CommitId(b"m" * 32), 9, 3, 0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (
            lambda p: replace(p, num_forks=2),
            "trouble",
            "the run goes on in two branches until they meet: some peers cannot reach the others",
        ),
        (lambda p: replace(p, num_forks=0), "run", "one of the branches is not followed any more"),
        (lambda p: replace(p, banned=p.banned | {C}), "trouble", f"{peer_name(C)} was banned"),
        (lambda p: replace(p, missing=(MISSING,)), "trouble", "round 9 is missing here; it is being asked for"),
        (lambda p: replace(p, state=replace(p.state, phase=Phase.FINISHED)), "run", "finished: all is well"),
        (
            lambda p: replace(p, checkpoints=(*p.checkpoints, replace(p.checkpoints[0], commit=MISSING.head, index=4))),
            "checkpoint",
            "checkpoint of round 4 written and verified",
        ),
    ],
)
def test_what_befalls_the_run_is_told(change: Callable[[RunPicture], RunPicture], kind: str, text: str) -> None:
    assert reported(picture(), change(picture())) == [(kind, text)]


def test_the_end_of_an_absence_of_rounds_is_told() -> None:
    assert reported(replace(picture(), missing=(MISSING,)), picture()) == [
        ("run", "all rounds that were missing are here")
    ]


def test_peers_that_cannot_meet_for_long_are_trouble_until_a_helper_is_at_work() -> None:
    hidden = replace(peer(), is_outbound_only=True)
    look = replace(picture(), peers={each: PeerEntry(hidden, 500.0) for each in (A, B)})
    book = EventBook()
    said = [
        [event.kind for event in book.note(look, now_s, 1_000, helpers_until_s)]
        for now_s, helpers_until_s in (
            (440.0, {}),
            (470.0, {}),
            (500.0, {}),
            (501.0, {}),
            (502.0, {C: 510.0}),
            (503.0, {C: 510.0}),
        )
    ]
    assert said == [["run"], [], ["trouble"], [], ["run"], []]
    assert book.reach.num_helpers == 1


def test_it_is_told_once_that_no_peer_is_here_any_more() -> None:
    both, one, none = (
        with_peers(a="training", b="paused"),
        with_peers(a="training", b="left"),
        with_peers(a="left", b="left"),
    )
    waits = ("trouble", "no peer is here: the run waits until one comes back")
    assert waits not in reported(both, one)
    assert reported(one, none)[-1] == waits
    assert reported(none, none) == []


def test_only_the_newest_events_are_kept_and_their_numbers_go_on() -> None:
    book = EventBook()
    for number in range(MAX_EVENTS + 10):
        book.note(replace(picture(), banned=frozenset((PeerId(f"{number}"),))), NOW_S, number)
    kept = book.newest(MAX_EVENTS * 2)
    assert [e.number for e in kept] == list(range(11, MAX_EVENTS + 11))
    assert book.newest(0) == ()


def test_an_event_has_the_chosen_name_after_the_peers_own() -> None:
    entry = PeerEntry(replace(peer(), chosen=ChosenName(peer_name(B))), NOW_S - 1.0)
    assert reported(picture(), replace(picture(), peers={C: entry}))[-1:] == [
        ("peer", f"{peer_name(C)} ({peer_name(B)}) came")
    ]


def test_a_rise_of_the_held_out_loss_beyond_its_noise_and_its_end_are_told_once_each() -> None:
    def curve(*nats: float) -> RunPicture:
        losses = [*(3.0 - 0.01 * number for number in range(12)), *nats]
        points = [LossPoint(WHOLE, n, n, value, "") for n, value in enumerate(losses, 1)]
        return replace(picture(), loss_points=points, rounds=())

    assert reported(curve(), curve(9.0)) == []
    ((kind, text),) = reported(curve(9.0), curve(9.0, 9.5))
    assert kind == "trouble"
    assert text.startswith("held-out loss rose from 2.89 at round 12 to 9.5 at round 14; noise explains up to ")
    assert reported(curve(9.0, 9.5), curve(9.0, 9.5, 9.7)) == []
    ((kind, text),) = reported(curve(9.0, 9.5), curve(9.0, 9.5, 2.9))
    assert (kind, text) == ("run", "the held-out loss is no worse than noise explains again")
