"""A newcomer believes the holders that show a proof, if there is anything to show."""

from __future__ import annotations

from peer.holdings.verified_holders_core import Believed, HolderReply, Shown, believed, everybody
from protocol.ids import PeerId, UnitName

A, B, C, D = (PeerId(name) for name in ("holder-aaaaaa", "liar-bbbbbb", "walled-cccccc", "gone-dddddd"))
UNITS = (UnitName("expert-0"), UnitName("expert-1"))


def _looked(**shown: Shown) -> HolderReply:
    return HolderReply(True, is_there=True, shown={int(name.removeprefix("of_")): each for name, each in shown.items()})


def test_who_shows_commits_is_a_holder_and_who_shows_none_of_which_others_show_some_is_not() -> None:
    listed = {A: (0,), B: (0, 1), C: (1,), D: (1,)}
    looked = {
        A: _looked(of_0=Shown(3)), B: _looked(of_0=Shown(), of_1=Shown(2)), C: HolderReply(False), D: HolderReply(True),
    }  # fmt: skip
    found = believed(listed, looked, UNITS, run_index=0)
    assert found.held == {A: (0,), B: (1,)}
    assert (found.on_word, found.doubted) == ({C: (1,)}, {B: (0,)})
    assert found.reasons == (
        "bbbbbb says that it holds expert-0 and shows no commit of it, of which others show 3 commits: it does not count as a holder",
    )
    assert found.num_claims(2) == (1, 1)


def test_who_has_proven_nothing_that_it_claims_is_neither_a_holder_nor_undecided() -> None:
    found = believed({B: (1,)}, {B: _looked(of_1=Shown())}, UNITS, run_index=7)
    assert (found.held, found.doubted) == ({}, {B: (1,)})
    assert not found.is_empty, "somebody is listed: the start record's founders are not counted in their place"
    assert found.reasons == (
        "bbbbbb says that it holds expert-1 and shows no commit of it: it does not count as a holder",
    )


def test_before_the_first_round_of_anything_there_is_nothing_to_show() -> None:
    looked = {A: _looked(of_0=Shown()), B: _looked(of_1=Shown(refused="shows no commits of it that verify (noise)"))}
    found = believed({A: (0,), B: (1,)}, looked, UNITS, run_index=0)
    assert found.held == {A: (0,)}
    assert found.reasons == (
        "bbbbbb says that it holds expert-1 and shows no commits of it that verify (noise): it does not count as a holder",
    )


def test_founders_hold_what_the_start_record_gave_them_while_nobody_shows_a_commit_of_it() -> None:
    founders = {A: (0,), B: (1,)}
    listed = {A: (0,), B: (0, 1), C: (1,)}
    looked = {A: _looked(of_0=Shown()), B: _looked(of_0=Shown(), of_1=Shown()), C: _looked(of_1=Shown())}
    found = believed(listed, looked, UNITS, 3, founders)
    assert found.held == {A: (0,), B: (1,)}
    assert found.doubted == {B: (0,), C: (1,)}, "a word without a commit is a founder's alone, and of its own part"
    assert found.reasons[0] == (
        "bbbbbb says that it holds expert-0 and shows no commit of it: it does not count as a holder"
    )
    later = believed({**listed, D: (1,)}, {**looked, D: _looked(of_1=Shown(2))}, UNITS, 3, founders)
    assert later.held == {A: (0,), D: (1,)}, "where somebody shows a commit of a part its founders show it, too"
    lying = believed(listed, {**looked, A: _looked(of_0=Shown(refused="lies"))}, UNITS, 3, founders)
    assert lying.held == {B: (1,)}


def test_who_has_not_decided_counts_as_such_and_a_part_that_the_run_has_not_is_told() -> None:
    looked = {A: _looked(), B: _looked(of_7=Shown(refused="lies"))}
    found = believed({A: (), B: (7,)}, looked, UNITS, run_index=3)
    assert found.held == {A: ()}
    assert found.reasons == ("bbbbbb says that it holds part 7 of 2 and lies: it does not count as a holder",)
    assert found.num_claims(2) == (0, 0)


def test_who_does_not_choose_by_others_takes_them_as_they_are_listed() -> None:
    assert everybody({A: (0,)}) == Believed({A: (0,)}, {}, {})
    assert everybody({}).is_empty
