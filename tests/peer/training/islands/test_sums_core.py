"""Weights, shares of credited tokens and progress of several islands."""

from __future__ import annotations

import pytest

from averaging.network.seams.interfaces import TrainerProgress
from peer.training.islands.sums_core import LEFT_OUT, divided, names_of, together, weights_of


def test_islands_weigh_by_their_tokens_and_the_first_alone_without_any() -> None:
    assert weights_of([64, 0, 192]) == (0.25, 0.0, 0.75)
    assert weights_of([0, 0]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("credited", "reported", "ready", "shares"),
    [
        (300, [100, 200], [150, 260], (100, 200)),
        (150, [100, 200], [150, 260], (50, 100)),
        (100, [100, 101], [150, 260], (50, 50)),
        (101, [100, 101], [150, 260], (51, 50)),
        (340, [100, 200], [130, 260], (130, 210)),
        (300, [100, 200], [0, 260], (100, 200)),
        (64, [0, 0], [0, 128], (0, 64)),
        (0, [100, 200], [100, 200], (0, 0)),
        (1000, [100, 200], [100, 200], (100, 200)),
    ],
    ids=[
        "all that was told",
        "half of it",
        "a remainder that fits no proportion",
        "a remainder is the first's",
        "more than was told",
        "a dead island's are gone already",
        "nothing was told",
        "nothing",
        "more than there are",
    ],
)
def test_tokens_told_at_the_snapshot_are_credited_first(
    credited: int, reported: list[int], ready: list[int], shares: tuple[int, ...]
) -> None:
    assert divided(credited, reported, ready) == shares


def test_islands_on_devices_of_one_name_are_counted() -> None:
    assert names_of(["cuda:0", "cuda:1"]) == ("cuda:0", "cuda:1")
    assert names_of(["cpu", "cuda:0", "cpu"]) == ("cpu no. 0", "cuda:0", "cpu no. 1")


def _progress(state: str, reason: str = "", loss: float | None = None, tokens: int = 0) -> TrainerProgress:
    return TrainerProgress(tokens, 2 * tokens, loss, tokens / 2, 1, state, reason)


def test_islands_together_train_while_one_of_them_does_and_a_reason_names_its_island() -> None:
    one, other = _progress("paused", "too hot", 2.0, 64), _progress("training", "", 4.0, 128)
    assert together(["cuda:0", "cuda:1"], [one, other]) == TrainerProgress(
        192, 384, 3.0, 96.0, 2, "training", "cuda:0: too hot", num_replicas=2
    )


@pytest.mark.parametrize(
    ("states", "state", "reason"),
    [
        (("paused", "paused"), "paused", "why"),
        (("restarting", "paused"), "restarting", "why"),
        ((LEFT_OUT, "starting"), "starting", "why"),
        ((LEFT_OUT, LEFT_OUT), "held", "why"),
    ],
)
def test_a_reason_that_all_islands_share_is_said_once(states: tuple[str, str], state: str, reason: str) -> None:
    found = together(["cuda:0", "cuda:1"], [_progress(each, "why") for each in states])
    assert (found.state, found.reason, found.loss_nats) == (state, reason, None)
