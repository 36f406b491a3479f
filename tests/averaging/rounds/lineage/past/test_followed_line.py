from __future__ import annotations

import pytest

from averaging.rounds.lineage.past import followed_line
from averaging.rounds.lineage.past.followed_line import FollowedLine
from protocol.ids import CommitId
from protocol.rounds.messages.wire import encode_certificate
from tests.protocol.rounds.made_commits import Made, lineage_on
from tests.protocol.rounds.round_table import Table


def _line(length: int = 6) -> tuple[FollowedLine, list[Made]]:
    table = Table(3)
    made = lineage_on(table.genesis, table.live(), length)
    line = FollowedLine([table.genesis], [])
    for each in made:
        line.append(each.link, each.certificate)
    return line, made


def _raws(made: list[Made]) -> list[bytes]:
    return [encode_certificate(each.certificate) for each in made]


def test_commits_are_found_by_their_id_and_by_their_round_wherever_the_lineage_begins() -> None:
    line, made = _line()
    line.begin_at(3)
    assert (line.root, line.head) == (made[2].link, made[5].link)
    assert [line.commit_at(index) for index in (2, 3, 6, 7)] == [None, made[2].link.commit, made[5].link.commit, None]
    assert line.place(made[4].link.commit) == 2
    assert line.place(made[1].link.commit) is None
    assert line.has(made[2].link.commit)
    assert not line.has(CommitId(b"?" * 32))


def test_certificates_are_given_after_the_newest_known_commit_and_on_a_base() -> None:
    line, made = _line()
    line.begin_at(2)
    known = [CommitId(b"?" * 32), made[2].link.commit, made[3].link.commit]
    assert list(line.after(known)) == _raws(made[4:])
    assert list(line.after([made[0].link.commit])) == [], "it is not here any more"
    assert line.on(made[1].link.commit) == made[2].certificate
    assert line.on(made[5].link.commit) is None
    assert line.on(made[0].link.commit) is None


def test_certificates_are_given_from_a_round_on_or_from_the_oldest_that_is_here() -> None:
    line, made = _line()
    assert line.since(3, 2) == _raws(made[2:4])
    line.begin_at(2)
    assert line.since(3, 9) == line.since(1, 9) == _raws(made[2:])
    assert line.since(5, 9) == _raws(made[4:])
    assert line.since(7, 9) == []


def test_links_are_light_once_they_are_old_also_when_many_come_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_line, "NUM_WHOLE", 2)
    line, made = _line()
    assert [link.is_light for link in line.links] == [False, True, True, True, True, False, False]
    assert [link.record for link in line.links[1:]] == [each.link.record for each in made]
    line.replace_after(0, [each.link for each in made], [each.certificate for each in made])
    assert [link.is_light for link in line.links] == [False, True, True, True, True, False, False]
    line.replace_after(2, (), ())
    assert (line.head, len(line.certificates)) == (made[1].link, 2)
