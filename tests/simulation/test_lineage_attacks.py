"""Attacks between lineages: cuts, sleep, liars and bans, played against the rules that answer them; test_attack_list.py names
every attack and its tests.
"""

from __future__ import annotations

from protocol.ids import PeerId
from protocol.rounds.events import PeerLost
from protocol.rounds.messages.messages import Committed, RoundMessage
from protocol.rounds.messages.wire import decode_record
from protocol.rounds.orders import PrepareSwitch, Switch
from tests.protocol.rounds.made_commits import lineage_on
from tests.protocol.rounds.round_table import UNIT, Seat, Table


def _heads(table: Table) -> set[bytes]:
    return {seat.head.commit for seat in table.live()}


def _has_lone(seat: Seat) -> bool:
    return any(link.is_lone for link, _ in seat.disk.chain)


# --- cut off, frozen, alone ---------------------------------------------------------------------------------------------------


def test_seconds_of_bad_wifi_make_no_lineage_of_their_own() -> None:
    table = Table(4)
    table.run_until(lambda: table.all_at(1))
    for _ in range(5):
        unlucky = table.live()[0]
        unlucky.tokens = 1000  # a round is due for it at any time
        table.split(unlucky)
        table.run_for(8.0)
        table.heal()
        table.run_for(4.0)
    table.run_until(lambda: len(_heads(table)) == 1, 10.0)
    assert not any(_has_lone(seat) for seat in table.live())
    assert not any(seat.ordered(Switch) for seat in table.live())


def test_who_wakes_up_after_a_long_freeze_suspects_nobody_and_commits_nothing_alone() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(1))
    sleeper = table.live()[0]
    sleeper.tokens = 1000
    table.freeze(sleeper)
    table.run_for(100.0)
    table.thaw(sleeper)
    table.run_for(20.0)
    assert not _has_lone(sleeper)
    assert sleeper.head.index >= min(seat.head.index for seat in table.others(sleeper))


def test_when_all_but_one_were_frozen_longer_than_its_patience_they_end_on_one_lineage() -> None:
    table = Table(4, longest_interval_s=10.0, lone_patience_s=20.0)
    table.run_until(lambda: table.all_at(1))
    awake, *frozen = table.live()
    for seat in frozen:
        table.freeze(seat)
    table.run_until(lambda: _has_lone(awake), 60.0)
    table.run_for(20.0)
    for seat in frozen:
        table.thaw(seat)
    table.run_until(lambda: len(_heads(table)) == 1, 120.0)
    before = awake.head.index
    table.run_until(lambda: table.all_at(before + 2), 120.0)
    record = awake.head.record
    assert record is not None
    assert len(record.contributors) == 4


def test_three_lone_lineages_of_equal_worth_become_one_and_nobody_goes_back_and_forth() -> None:
    table = Table(3, longest_interval_s=5.0, lone_patience_s=10.0)
    for seat in table.live():
        seat.tokens = 300
    table.tick()
    one, two, three = table.live()
    table.cuts = {(a.peer, b.peer) for a in table.live() for b in table.live() if a is not b}
    table.run_until(lambda: all(_has_lone(seat) for seat in (one, two, three)), 120.0)
    table.heal()
    table.run_until(lambda: len(_heads(table)) == 1, 120.0)
    assert all(len(seat.ordered(Switch)) <= 2 for seat in table.live())
    before = one.head.index
    table.run_until(lambda: table.all_at(before + 2), 60.0)


def test_two_near_equal_sides_in_full_contact_switch_few_times() -> None:
    table = Table(6, longest_interval_s=5.0, lone_patience_s=10.0)
    table.run_until(lambda: table.all_at(1))
    left, right = table.live()[:3], table.live()[3:]
    for _ in range(3):
        table.split(*left)
        before = max(seat.head.index for seat in table.live())
        table.run_until(lambda before=before: table.all_at(before + 4), 120.0)  # type: ignore[misc]
        table.heal()
        table.run_until(lambda: len(_heads(table)) == 1, 120.0)
    assert all(len(seat.ordered(Switch)) <= 3 for seat in (*left, *right))


# --- who lies, who is sent away -----------------------------------------------------------------------------------------------


def test_a_liar_that_writes_any_number_of_tokens_into_a_lone_commit_takes_nobody_along() -> None:
    table = Table(4, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(1))
    liar, *rest = table.live()
    (made,) = lineage_on(table.genesis, [liar], 1, tokens=10**18, lone=True)
    table.kill(liar)
    table.run_until(lambda: all(seat.head.total_tokens >= 4 * seat.head.target_tokens for seat in rest), 60.0)
    base = rest[0].head.index
    for seat in rest:
        seat.hear(liar, Committed(UNIT, made.certificate))
        assert made.link.commit in seat.state.tree.nodes, "it is a commit like any other"
    table.run_until(lambda: all(seat.head.index >= base + 2 for seat in rest), 60.0)
    assert not any(seat.ordered(PrepareSwitch) for seat in rest)


def test_a_ban_of_which_one_side_has_heard_parts_nobody_and_what_counts_the_banned_stands() -> None:
    """Peers that know of the ban refuse the banned peer's messages and suspect it; the others still take part in rounds with it."""
    table = Table(5)
    table.run_until(lambda: table.all_at(1))
    banned = table.others(table.opener())[0]
    knows: set[PeerId] = {seat.peer for seat in table.others(banned)[:2]}

    def refuses(sender: PeerId, to: PeerId, message: RoundMessage) -> bool:
        return (sender == banned.peer and to in knows) or (to == banned.peer and sender in knows)

    def pass_time(rounds: int) -> None:
        goal = max(seat.head.index for seat in table.others(banned)) + rounds
        while min(seat.head.index for seat in table.others(banned)) < goal:
            for peer in knows:
                table.seats[peer].feed(PeerLost(banned.peer))
            table.run_for(1.0)

    table.drops = refuses
    pass_time(3)
    assert not any(_has_lone(seat) or seat.ordered(Switch) for seat in table.live())
    knows |= {seat.peer for seat in table.others(banned)}
    pass_time(3)
    chain = [decode_record(certificate.record) for certificate in table.others(banned)[0].certificates]
    assert any(record.contributor(banned.peer) for record in chain), "signed before, and it stands"
    assert chain[-1].contributor(banned.peer) is None
    assert banned.peer not in chain[-1].roster
    # a newcomer that knows of the ban replays what the banned peer signed
    newcomer = table.others(banned)[0]
    table.restart(newcomer, loses_disk=True)
    table.run_until(lambda: newcomer.head.index >= len(chain), 60.0)
