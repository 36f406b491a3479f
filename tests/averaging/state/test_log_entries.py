from __future__ import annotations

from dataclasses import replace

import pytest

from averaging.state.log_entries import (
    LoggedContribution,
    LoggedMilestone,
    LoggedRounds,
    ack_entry,
    certificate_entry,
    connected,
    contribution_entry,
    kept_entries,
    milestone_entry,
    promise_entry,
    read_entries,
    switch_entry,
)
from protocol.errors import StorageError
from protocol.ids import CommitId, Root
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import encode_certificate
from tests.protocol.rounds.made_commits import Made, lineage_on
from tests.protocol.rounds.round_table import Table

OFFERED = LoggedContribution(Root(b"r" * 32), 7, 5, 3)


def _lineage(length: int = 4, salt: int = 0) -> tuple[Table, list[Made]]:
    table = Table(3)
    return table, lineage_on(table.genesis, table.live(), length, salt=salt)


def _base(made: Made) -> CommitId:
    assert made.link.parent is not None
    return made.link.parent


def _raw(made: Made) -> bytes:
    return encode_certificate(made.certificate)


def _entries(lineage: list[Made], ballot: Ballot) -> list[bytes]:
    entries = []
    for made in lineage:
        base = _base(made)
        entries += [contribution_entry(base, OFFERED), promise_entry(base, ballot)]
        entries += [ack_entry(base, ballot, made.certificate.record), certificate_entry(base, _raw(made))]
    return entries


def test_a_log_begins_at_its_milestone_and_forgets_all_that_was_before_it() -> None:
    table, lineage = _lineage()
    begins = LoggedMilestone(lineage[1].link.commit, b"sealed", 9)
    entries = [*_entries(lineage, Ballot(0, table.live()[0].peer)), milestone_entry(begins)]
    logged, sizes = read_entries(entries)
    assert logged.begins == begins
    assert [base for base, _ in logged.certificates] == [_base(made) for made in lineage[2:]]
    assert set(logged.bases) == {_base(made) for made in lineage[2:]}
    rewritten = list(kept_entries(logged, set(logged.bases)))
    again, exact = read_entries(rewritten)
    assert again == logged
    assert exact.total_bytes == sizes.live_bytes(set(logged.bases))


def test_a_log_that_begins_at_its_head_has_no_certificate_and_keeps_the_votes_on_the_head() -> None:
    table, lineage = _lineage(2)
    head, ballot = lineage[-1].link.commit, Ballot(3, table.live()[0].peer)
    begins = LoggedMilestone(head, b"sealed", 0)
    entries = [*_entries(lineage, ballot), promise_entry(head, ballot), milestone_entry(begins)]
    logged, _ = read_entries(entries)
    assert (logged.certificates, set(logged.bases)) == ([], {head})
    assert logged.bases[head].promised == ballot


def test_a_log_that_jumps_to_a_milestone_off_its_lineage_keeps_nothing_of_that() -> None:
    table, lineage = _lineage()
    _, other = _lineage(3, salt=1)
    begins = LoggedMilestone(other[1].link.commit, b"sealed", 4)
    entries = [
        *_entries(lineage, Ballot(0, table.live()[0].peer)),
        milestone_entry(begins),
        certificate_entry(_base(other[2]), _raw(other[2])),
    ]
    logged, _ = read_entries(entries)
    assert [base for base, _ in logged.certificates] == [_base(other[2])]
    assert logged.bases == {}


def test_abandoned_commits_stay_where_they_left_the_lineage_after_its_milestone() -> None:
    table, lineage = _lineage(4)
    early = lineage_on(lineage[0].link, table.live(), 2, salt=1)
    late = lineage_on(lineage[2].link, table.live(), 2, salt=2)
    followed = lineage_on(lineage[2].link, table.live(), 1, salt=3)
    entries = [certificate_entry(_base(lineage[0]), _raw(lineage[0]))]
    entries += [certificate_entry(_base(made), _raw(made)) for made in early]
    entries += [switch_entry(lineage[0].link.commit, [_raw(made) for made in lineage[1:3]])]
    entries += [certificate_entry(_base(made), _raw(made)) for made in late]
    entries += [switch_entry(lineage[2].link.commit, [_raw(followed[0])])]
    logged, _ = read_entries(entries)
    assert connected(logged) is logged, "without a milestone nothing is taken away"
    assert {base for base, _ in logged.displaced} == {_base(made) for made in (*early, *late)}
    begun, _ = read_entries([*entries, milestone_entry(LoggedMilestone(lineage[1].link.commit, b"s", 0))])
    assert [base for base, _ in connected(begun).displaced] == [_base(made) for made in late]


def test_an_entry_of_no_known_kind_is_damage() -> None:
    for entry in (b"?" + bytes(32), b"M" + bytes(33), b"C" + bytes(32) + b"short"):
        with pytest.raises(StorageError, match="an entry"):
            read_entries([entry])


def test_an_empty_log_begins_at_the_genesis() -> None:
    assert read_entries([])[0] == LoggedRounds([])


def test_a_contribution_of_an_older_release_has_no_number_of_steps_and_one_of_another_length_is_damage() -> None:
    base = CommitId(b"b" * 32)
    entry = contribution_entry(base, replace(OFFERED, num_steps=0))
    assert read_entries([entry])[0].bases[base].contributions == (replace(OFFERED, num_steps=0),)
    for damaged in (entry[:-1], entry + b"x", contribution_entry(base, OFFERED) + b"x"):
        with pytest.raises(StorageError, match="restore or rejoin"):
            read_entries([damaged])
