from __future__ import annotations

from averaging.rounds.lineage.past.followed_line import FollowedLine
from averaging.rounds.lineage.past.offered_work import OfferedWork
from averaging.state.log_entries import LoggedBase, LoggedContribution, LoggedMilestone, LoggedRounds
from protocol.ids import Root
from tests.protocol.rounds.made_commits import Made, lineage_on
from tests.protocol.rounds.round_table import Table


def _line(length: int = 4) -> tuple[FollowedLine, list[Made]]:
    table = Table(3)
    made = lineage_on(table.genesis, table.live(), length)
    links = [table.genesis, *(each.link for each in made)]
    return FollowedLine(links, [each.certificate for each in made]), made


def _counted_root(made: Made) -> Root:
    assert made.link.record is not None
    return made.link.record.contributors[0].root


def _offered(root: Root, next_step: int) -> LoggedContribution:
    return LoggedContribution(root, 1, next_step)


def test_data_goes_on_after_the_last_step_that_was_counted_or_may_still_be() -> None:
    line, made = _line()
    work = OfferedWork()
    assert work.next_step(line) == 0
    work.add(line.links[0].commit, _offered(_counted_root(made[0]), 5))
    work.add(line.links[1].commit, _offered(Root(b"x" * 32), 9))
    assert work.next_step(line) == 5, "the second commit counted another contribution"
    work.add(line.head.commit, _offered(Root(b"y" * 32), 12))
    assert work.next_step(line) == 12, "the round on the head may count it"


def test_steps_that_were_counted_before_the_beginning_are_not_taken_again() -> None:
    line, made = _line()
    work = OfferedWork()
    work.add(line.links[0].commit, _offered(_counted_root(made[0]), 5))
    work.add(line.links[1].commit, _offered(Root(b"x" * 32), 9))
    work.begin_at(line, 2)
    line.begin_at(2)
    assert (work.settled_step, work.next_step(line)) == (5, 5)
    work.add(line.links[0].commit, _offered(_counted_root(made[2]), 7))
    assert work.next_step(line) == 7


def test_a_log_that_begins_at_a_milestone_names_the_step() -> None:
    line, made = _line()
    bases = {line.links[1].commit: LoggedBase((_offered(_counted_root(made[1]), 4),))}
    begins = LoggedMilestone(line.links[0].commit, b"sealed", 8)
    assert OfferedWork(LoggedRounds([], bases, [], begins)).next_step(line) == 8
    assert OfferedWork(LoggedRounds([], bases)).next_step(line) == 4
    anew = OfferedWork(LoggedRounds([], bases))
    anew.begin_anew(6)
    assert anew.next_step(line) == 6
