from __future__ import annotations

from structlog.testing import capture_logs

from coordinator.ledger.ledger import LossPoint
from coordinator.progress.heldout_core import Turns
from coordinator.progress.loss_curves import LossCurves
from protocol.host.reports import HeldoutResult
from protocol.ids import CommitId, PeerId, RunId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.evaluators import evaluator_order
from protocol.rounds.lineage.lineage import tree_of

RUN, UNIT = RunId(b"r" * 32), UnitName("whole")
PEERS = (PeerId("a"), PeerId("b"))
LINK = ChainLink(UNIT, CommitId(b"c" * 32), 7, PEERS, 700, 100)
FIRST, SECOND = evaluator_order(RUN, UNIT, 7, PEERS)
RESULT = HeldoutResult(LINK.commit, 99, 99, 2.0)


def test_a_value_that_waits_is_decided_again_each_time_and_shown_once_it_is_taken() -> None:
    curves = LossCurves()
    fresh = curves.heard(SECOND, (RESULT,), lambda _: LINK, Turns(RUN))
    curves.take(curves.settled(fresh, tree_of(LINK), LINK, PEERS))
    assert curves.points == ()
    decided = curves.settled((), tree_of(LINK), LINK, (SECOND,))
    assert curves.points == (), "the ledger has it first"
    curves.take(decided)
    assert curves.points == (LossPoint("heldout", 7, 700, 2.0, SECOND),)
    late = curves.settled(
        curves.heard(FIRST, (HeldoutResult(LINK.commit, 7, 700, 1.0),), lambda _: LINK, Turns(RUN)),
        tree_of(LINK),
        LINK,
        PEERS,
    )
    curves.take(late)
    assert [(point.peer, point.nats) for point in curves.points] == [(FIRST, 1.0)]


def test_a_peer_that_may_not_measure_is_logged_once_for_a_commit_and_an_unknown_commit_says_nothing() -> None:
    curves, stranger = LossCurves(), PeerId("stranger")
    with capture_logs() as said:
        for _ in range(3):
            assert not curves.heard(stranger, (RESULT, RESULT), lambda _: LINK, Turns(RUN))
        assert not curves.heard(stranger, (RESULT,), lambda _: None, Turns(RUN))
    assert [line["event"] for line in said] == ["heldout_refused"]
    assert "ranger measured commit 7" in said[0]["reason"]


def test_of_several_points_at_one_place_of_an_older_ledger_the_first_is_shown() -> None:
    curves = LossCurves()
    points = [LossPoint("heldout", 7, 700, nats, peer) for nats, peer in ((2.0, PEERS[0]), (3.0, PEERS[1]))]
    curves.restore([*points, LossPoint("train", 7, 700, 1.0, PeerId(""))])
    assert [(point.kind, point.nats) for point in curves.points] == [("heldout", 2.0), ("train", 1.0)]
