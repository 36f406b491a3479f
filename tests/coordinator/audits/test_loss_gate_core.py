from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from coordinator.audits.loss_gate_core import (
    FEWEST_CHANGES,
    HOLD_S,
    MEASURED_WITHIN_S,
    MOST_BACK,
    NEW_LEVEL_AFTER,
    STILL_S,
    GateFacts,
    GoBack,
    LiftHold,
    Measure,
    SignHold,
    measures_on,
    next_action,
    noise_of,
    rise_in,
)
from coordinator.ledger.ledger import LossPoint
from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage.chain_link import ChainLink, link_of
from protocol.rounds.lineage.hold import Hold
from protocol.rounds.lineage.rewind import Rewind, seal_rewind
from protocol.rounds.messages.record import MAX_REWINDS
from tests.protocol.rounds.made_commits import lineage_on
from tests.protocol.rounds.round_table import RUN_ID, UNIT, Table
from tests.simulation.signing import AUTHORITY


def _measures(losses: list[float]) -> list[Measure]:
    return [Measure(index, nats) for index, nats in enumerate(losses, 1)]


def _honest(num: int, seed: int, noise: float = 0.01) -> list[float]:
    """A loss that falls ever slower, with noise."""
    chance = random.Random(seed)
    return [2.0 + 3.0 / (1 + 0.2 * index) + chance.gauss(0.0, noise) for index in range(num)]


def test_the_noise_is_the_typical_change_and_one_bad_round_does_not_move_it() -> None:
    changes = [-0.01, 0.01, -0.02, 0.02, 0.0]
    assert noise_of(changes) == pytest.approx(0.01)
    assert noise_of([*changes, 90.0]) <= 0.02
    assert noise_of([]) == 0.0


@pytest.mark.parametrize("noise", [0.001, 0.01, 0.05])
def test_honest_runs_never_rise_whatever_their_noise(noise: float) -> None:
    for seed in range(40):
        losses = _honest(120, seed, noise)
        assert [number for number in range(0, 121, 3) if rise_in(_measures(losses[:number]))] == []


def test_a_loss_that_runs_away_is_found_at_its_second_commit_and_the_last_good_one_is_named() -> None:
    good = _honest(40, 1)
    losses = _measures([*good, 2.9, 3.6, 5.0])
    assert rise_in(losses[:41]) is None, "one value is one peer's word"
    found = rise_in(losses[:42])
    assert found is not None
    assert found.good == losses[39]
    assert found.bad == tuple(losses[40:42])
    later = rise_in(losses)
    assert later is not None
    assert later.good == losses[39]
    assert later.words.startswith("held-out loss rose from 2.3")
    assert "to 5 at round 43; noise explains up to 2." in later.words


def test_one_bad_value_between_good_ones_is_no_rise_and_the_loss_that_comes_back_ends_one() -> None:
    good = _honest(40, 2)
    assert rise_in(_measures([*good, 9.0, good[-1], 9.0, good[-1]])) is None
    assert rise_in(_measures([*good, 9.0, 9.0])) is not None
    assert rise_in(_measures([*good, 9.0, 9.0, good[-1]])) is None


def test_a_loss_that_stays_up_becomes_the_level_of_the_run() -> None:
    good = _honest(40, 3)
    assert rise_in(_measures([*good, *[3.0] * NEW_LEVEL_AFTER])) is not None
    assert rise_in(_measures([*good, *[3.0] * (NEW_LEVEL_AFTER + 1)])) is None


def test_nothing_is_judged_before_the_noise_is_known() -> None:
    assert rise_in([]) is None
    assert rise_in(_measures([2.0, 90.0, 90.0])) is None
    few = [2.0 - 0.01 * number for number in range(FEWEST_CHANGES)]
    assert rise_in(_measures([*few, 90.0, 90.0])) is None
    assert rise_in(_measures([*few, 1.9, 1.9, 90.0, 90.0])) is not None


# --- what follows from a rise -----------------------------------------------------------------------------------------------------

GENESIS = CommitId(b"g" * 32)
HOLD = Hold(1, UNIT, GENESIS, GENESIS, 1_700_000_000, HOLD_S, 10, 3.0, 12, 5.0)
NOW_UNIX_S = HOLD.unix_s + 20.0


def _links(length: int, rewinds: dict[int, int] | None = None) -> list[ChainLink]:
    """A lineage of so many commits; some of them are rewinds, by index, of these numbers."""
    table = Table(3)
    links = list[ChainLink]()
    for index in range(1, length + 1):
        number = (rewinds or {}).get(index)
        if number is None:
            links.append(lineage_on(links[-1] if links else table.genesis, table.live(), 1)[0].link)
        else:
            links.append(link_of(seal_rewind(AUTHORITY, RUN_ID, links[-1], Rewind(number, GENESIS, 1)).record))
    return links


def _facts(
    bad: Sequence[float] = (5.0, 5.0),
    num_good: int = 10,
    hold: Hold | None = None,
    still_s: float = 0.0,
    number: int = 0,
    now_unix_s: float = NOW_UNIX_S,
    num_unmeasured: int = 0,
    rewinds: dict[int, int] | None = None,
) -> GateFacts:
    losses = [3.0 + 0.01 * (place % 3) for place in range(num_good)] + list(bad)
    links = _links(len(losses) + num_unmeasured, rewinds)
    return GateFacts(links, _measures(losses), hold, number, now_unix_s, still_s)


def test_a_rise_holds_then_waits_for_the_round_under_way_and_then_goes_back() -> None:
    action, why = next_action(_facts())
    assert isinstance(action, SignHold)
    assert (action.number, action.rise.good.index) == (1, 10)
    assert "no round is opened" in why
    action, why = next_action(_facts(hold=HOLD, still_s=STILL_S - 1))
    assert action is None
    assert "until its newest round is measured" in why
    just_held = _facts(hold=HOLD, still_s=600.0, now_unix_s=HOLD.unix_s + STILL_S - 1)
    assert next_action(just_held)[0] is None, "long rounds have a moment, too"
    facts = _facts(hold=HOLD, still_s=STILL_S)
    action, why = next_action(facts)
    assert isinstance(action, GoBack)
    assert (action.number, action.good) == (1, facts.links[9])
    assert "2 rounds are taken back, and the run goes on from round 10" in why


def test_while_the_loss_is_as_it_should_be_nothing_is_done_and_nothing_is_told() -> None:
    assert next_action(_facts(bad=())) == (None, "")
    assert next_action(_facts(bad=(5.0,))) == (None, "")
    action, _ = next_action(_facts(bad=(5.0, 5.0, 3.0), hold=HOLD))
    assert action == LiftHold(HOLD)
    assert next_action(_facts(bad=(), hold=replace(HOLD, lasts_s=0))) == (None, "")


def test_while_the_newest_rewind_is_not_followed_nothing_more_is_signed() -> None:
    action, why = next_action(replace(_facts(hold=HOLD, number=1, still_s=60.0), is_back=False))
    assert action is None
    assert "have not followed yet" in why


def test_a_newest_round_that_nobody_measures_is_awaited_for_a_while_and_no_longer() -> None:
    waiting = _facts(hold=HOLD, still_s=60.0, num_unmeasured=1)
    assert next_action(waiting)[0] is None
    late = replace(waiting, now_unix_s=HOLD.unix_s + MEASURED_WITHIN_S)
    assert isinstance(next_action(late)[0], GoBack)
    busy = _facts(hold=HOLD, still_s=0.0, now_unix_s=HOLD.unix_s + MEASURED_WITHIN_S)
    assert isinstance(next_action(busy)[0], GoBack), "peers that ignore the hold do not keep the host from it"


def test_a_hold_whose_time_is_over_is_signed_again_and_one_of_an_earlier_rewind_counts_no_more() -> None:
    assert isinstance(next_action(_facts(hold=HOLD, now_unix_s=HOLD.unix_s + HOLD_S))[0], SignHold)
    action, _ = next_action(_facts(hold=HOLD, number=1, still_s=60.0))
    assert isinstance(action, SignHold)
    assert action.number == 2


def test_worse_commits_that_too_few_measured_hold_nothing() -> None:
    facts = _facts()
    alone = replace(facts, measures=[*facts.measures[:-1], replace(facts.measures[-1], is_agreed=False)])
    assert next_action(alone) == (None, "")
    third = replace(alone, measures=[*alone.measures, Measure(13, 5.0)], links=_links(13))
    assert isinstance(next_action(third)[0], SignHold)


def test_where_the_host_cannot_go_back_it_tells_why_and_holds_nothing() -> None:
    cases = {
        f"more than {MOST_BACK} rounds back": _facts(num_unmeasured=MOST_BACK),
        f"{MAX_REWINDS} times, as often": _facts(number=MAX_REWINDS),
        "did not help": _facts(number=3, rewinds={2: 1, 5: 2, 8: 3}),
    }
    for found, facts in cases.items():
        action, why = next_action(facts)
        assert action is None
        assert found in why


def test_a_run_is_taken_back_only_to_a_commit_most_of_whose_voters_are_here() -> None:
    facts = _facts(hold=HOLD, still_s=STILL_S)
    roster = facts.links[9].roster
    assert isinstance(next_action(replace(facts, live=roster[:2]))[0], GoBack)
    action, why = next_action(replace(facts, live=[*roster[:1], PeerId("newcomer")]))
    assert action is None
    assert "1 of the 3 voters of round 10, the last good one, are here" in why


def test_only_points_of_followed_commits_are_measures_and_say_whether_enough_measured_them() -> None:
    links = _links(3)
    points = [
        LossPoint("heldout", link.index, link.total_tokens, float(link.index), PeerId("a"), link.index)
        for link in links
    ]
    off = LossPoint("heldout", 3, 1, 9.0, PeerId("a"))
    other = LossPoint("train", 1, links[0].total_tokens, 9.0, PeerId("a"))
    found = measures_on(links, [off, other, *points], "heldout")
    assert found == [Measure(1, 1.0, is_agreed=False), Measure(2, 2.0), Measure(3, 3.0)]
