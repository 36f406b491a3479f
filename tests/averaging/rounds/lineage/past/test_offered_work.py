from __future__ import annotations

from averaging.rounds.lineage.past.followed_line import FollowedLine
from averaging.rounds.lineage.past.offered_work import MOST_STEPS_KNOWN, OfferedWork
from averaging.state.log_entries import LoggedBase, LoggedContribution, LoggedMilestone, LoggedRounds
from protocol.ids import CommitId, Root
from protocol.rounds.messages.requests import StepsTaken
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


def test_steps_of_the_newest_contributions_are_told_also_after_a_restart_and_older_ones_forgotten() -> None:
    roots = [Root(bytes([number]) * 32) for number in range(MOST_STEPS_KNOWN + 1)]
    logged = {
        CommitId(bytes(root)): LoggedBase((LoggedContribution(root, 80, 10 * (number + 1), 8),))
        for number, root in enumerate(roots)
    }
    works = [OfferedWork(LoggedRounds([], logged)), OfferedWork()]
    for base, known in logged.items():
        works[1].add(base, known.contributions[0])
    for work in works:
        assert work.steps_of(roots[0]) is None
        told = [work.steps_of(root) for root in roots[1:]]
        assert told == [StepsTaken(root, 10 * number + 2, 8) for number, root in enumerate(roots) if number]
    works[0].begin_anew(99)
    assert works[0].steps_of(roots[1]) is not None, "an audit of it may still come"


def test_steps_that_lie_apart_or_were_logged_without_their_number_are_not_told() -> None:
    root = Root(b"r" * 32)
    work = OfferedWork(LoggedRounds([], {CommitId(b"b" * 32): LoggedBase((_offered(root, 5),))}))
    assert work.steps_of(root) is None
