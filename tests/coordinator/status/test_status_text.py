"""The status for people."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from coordinator.energy.run_energy import EnergySums
from coordinator.ledger.ledger import LossPoint
from coordinator.ledger.run_memory import Credits, RunPast
from coordinator.presence.presence import PeerEntry
from coordinator.progress.run_core import ALL_PAUSED, NOBODY_BACK, NOBODY_HERE
from coordinator.progress.run_view import MissingCommits
from coordinator.progress.stage_commits import StageCommits
from coordinator.progress.unit_holders import UnitHolders
from coordinator.push.push_core import PushState
from coordinator.scores.score_core import ScoredTask, TaskCurve, TaskPoint, curve_json
from coordinator.status.run_json import public_json, status_json
from coordinator.status.status_text import alerts, status_lines
from protocol.host.reports import UnitBytes
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.round_row import Counted, counted_by_peer
from protocol.run.evaluate_section import EvaluateSection
from tests.coordinator.progress.test_run_view import A, B, C, peer, picture, timed


def test_lines_say_progress_loss_peers_round_and_checkpoint() -> None:
    rounds = (timed(1, 300, 100), timed(2, 600, 110))
    points = (LossPoint("heldout", 2, 600, 1.386, A),)
    text = "\n".join(status_lines(json.loads(json.dumps(status_json(picture(rounds, points), 100.0)))))
    assert "600 of 1,000 tokens (60%), 13 s to go" in text
    assert "held-out 2.000" in text
    assert "25%" in text
    assert "too late" in text
    assert "2 peers banned" in text
    assert "the run goes on in 2 branches until they meet" in text
    for word in ("bans", "forks", "lineage", "pairs 4", "bulk"):
        assert word not in text
    assert "the host restarted at round 2; nothing was lost" in text
    assert "newest checkpoint: round 2" in text


def test_lines_say_to_which_round_the_host_took_the_run_back() -> None:
    last = timed(8, 300, 100)
    rewind = replace(last, row=replace(last.row, members=(), shares=(), omitted=(), tokens=(), is_rewind=True))
    lines = status_lines(json.loads(json.dumps(status_json(picture((rewind,)), 100.0))))
    assert any("last round 8: the host took the run back to round 7; nobody is counted" in line for line in lines)


def test_lines_say_what_the_model_can_do_and_where_its_checkpoints_went() -> None:
    facts = ScoredTask(EvaluateSection(name="facts", file="f", parts=2), 4, 0.25)
    points = (TaskPoint(2, 300, 4, 2, 3), TaskPoint(4, 600, 2, 1, 1, missing=(2,)))
    words = ScoredTask(EvaluateSection(name="words", file="w", kind="prompts"), 1, vocab_size=9, prompts=("a",))
    curves = (TaskCurve(facts, points), TaskCurve(words, answers=(("a", "b"),), answered_index=4), TaskCurve(facts))
    push = PushState("s3://b/run").succeeded("00000002-x", 2, 70).failed("it would not take it", 100.0)
    status = {
        **status_json(picture(), 100.0),
        "tasks": [curve_json(each) for each in curves],
        "push": push.as_json(100.0),
    }
    lines = status_lines(json.loads(json.dumps(status)))
    assert (
        "facts: 50.0% right, 75.0% for each byte, at round 2; chance 25.0%; of round 4 part 2 of 2 is missing" in lines
    )
    assert "words: answers of round 4" in lines
    assert "facts: not measured yet" in lines
    assert any(
        "pushed to s3://b/run: round 2 is verified there; failed: it would not take it" in line for line in lines
    )


def test_what_is_unusual_says_that_peers_cannot_meet_and_how_many_contributors_are_away() -> None:
    past = RunPast(Credits(9, by_peer={A: Counted(5, 1), C: Counted(9, 1)}))
    status = json.loads(json.dumps(status_json(picture(), 100.0, past, "nobody can connect to 2 of 3 peers")))
    assert "nobody can connect to 2 of 3 peers" in alerts(status)
    assert "  and 1 that contributed and is away: potluck peers" in status_lines(status)
    assert (status["away"][0]["peer"], status["names"][C]) == (C, peer_name(C))
    banned = json.loads(json.dumps(status_json(replace(picture(), banned=frozenset({C})), 100.0, past)))
    assert "contributed and is away" not in "\n".join(status_lines(banned)), "it is told among the banned ones"


def test_lines_name_the_banned_peers_also_those_that_were_not_heard() -> None:
    shown = replace(picture((timed(1, 300, 100),)), banned=frozenset((A, C)))
    status = json.loads(json.dumps(status_json(shown, 100.0)))
    text = "\n".join(status_lines(status))
    assert f"2 peers banned: {', '.join(map(peer_name, sorted((A, C))))}" in text
    (row,) = (line for line in text.splitlines() if line.startswith(f"  {peer_name(A)}"))
    assert " banned " in row
    public = json.dumps(public_json(status))
    assert "banned" not in public


def test_lines_say_that_the_run_waits_when_all_peers_are_gone() -> None:
    gone = {A: PeerEntry(peer(state="left"), 95.0), B: PeerEntry(peer(), 40.0)}
    lines = status_lines(json.loads(json.dumps(status_json(replace(picture(), peers=gone), 100.0))))
    assert lines[0] == "tiny: waiting: no peer is here; the run goes on when one comes back"
    assert "to go" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ("training", "paused", "training"),
        ("paused", "paused", f"waiting: {ALL_PAUSED}"),
        ("paused", "left", f"waiting: {ALL_PAUSED}"),
        ("left", "left", f"waiting: {NOBODY_HERE}"),
    ],
    ids=["one trains", "both paused", "the only one here is paused", "both left"],
)
def test_run_waits_without_a_time_to_go_while_no_peer_may_train(first: str, second: str, says: str) -> None:
    heard = {A: PeerEntry(peer(state=first), 95.0), B: PeerEntry(peer(state=second), 95.0)}
    shown = replace(picture((timed(1, 300, 100),)), peers=heard)
    lines = status_lines(json.loads(json.dumps(status_json(shown, 100.0))))
    assert lines[0] == f"tiny: {says}"
    assert any("to go" in line or "time left" in line for line in lines) == (says == "training")


def test_peer_that_left_has_its_count_and_no_speed() -> None:
    heard = {A: PeerEntry(peer(state="left"), 95.0), B: PeerEntry(peer(), 95.0)}
    lines = status_lines(status_json(replace(picture(), peers=heard), 100.0))
    (gone,) = (line for line in lines if " left " in line)
    assert "0 tokens counted, seen 5 s ago" in gone
    assert "tokens/s" not in gone


def test_page_has_the_words_of_the_status_for_a_run_that_waits() -> None:
    heard = {A: PeerEntry(peer(state="paused"), 95.0)}
    shown = status_json(replace(picture((timed(1, 300, 100), timed(2, 600, 110))), peers=heard), 100.0)
    assert (public_json(shown)["waiting"], shown["eta_s"]) == (ALL_PAUSED, None)
    assert status_json(picture((timed(1, 300, 100), timed(2, 600, 110))), 100.0)["waiting"] == ""


def test_run_waits_when_none_of_its_contributors_was_heard_since_a_restart() -> None:
    nobody, past = replace(picture(), peers={}), RunPast(Credits(9, by_peer={C: Counted(9, 1)}))
    assert status_lines(status_json(nobody, 100.0, past))[0] == f"tiny: waiting: {NOBODY_BACK}"
    assert status_lines(status_json(nobody, 100.0))[0] == "tiny: training"


def test_run_waits_when_the_only_peer_here_is_banned() -> None:
    banned = replace(picture(), peers={A: PeerEntry(peer(), 95.0)}, banned=frozenset((A,)))
    assert status_lines(json.loads(json.dumps(status_json(banned, 100.0))))[0] == f"tiny: waiting: {NOBODY_HERE}"


def test_lines_say_which_commits_nobody_brings() -> None:
    reported = MissingCommits(A, CommitId(b"h" * 32), 9, 4, 20.0, 20.0)
    torn = MissingCommits(PeerId(""), CommitId(b"t" * 32), 7, 0, 90.0, 90.0)
    shown = replace(picture((timed(1, 300, 100),)), missing=(reported, torn))
    lines = status_lines(json.loads(json.dumps(status_json(shown, 100.0))))
    assert f"missing: rounds 4 to 9 of {peer_name(A)}, for 80 s: the peer reported this commit" in "\n".join(lines)
    assert "missing: round 7 of the ledger, for 10 s: the ledger has" in "\n".join(lines)


def test_lines_say_who_holds_each_expert_which_ones_nobody_holds_and_the_loss_of_each() -> None:
    units = (
        UnitHolders(UnitName("expert-0"), (A,), 4),
        UnitHolders(UnitName("expert-1"), (), 3, is_frozen=True, kept_index=3),
        UnitHolders(UnitName("expert-2"), (), 3),
    )
    points = (
        LossPoint("heldout", 1, 300, 1.386, A),
        LossPoint("heldout expert-0", 1, 300, 0.693, A),
        LossPoint("heldout expert-0", 2, 600, 0.347, A),
        LossPoint("heldout expert-1", 1, 300, 2.079, A),
    )
    shown = replace(picture((timed(1, 300, 100),), points), units=units)
    lines = "\n".join(status_lines(json.loads(json.dumps(status_json(shown, 100.0)))))
    assert f"expert-0: round 4, held by {peer_name(A)}" in lines
    assert (
        "expert-1: round 3, frozen: no live peer holds it: it waits for a holder, which gets all of its 3 rounds from here"
        in lines
    )
    assert "expert-2: round 3, held by nobody at the moment" in lines
    assert "held-out 2.000 (expert-0 0.501, expert-1 2.999)" in lines


def test_lines_say_what_each_stage_does_and_could_do_which_one_is_waited_for_and_who_makes_each_lane() -> None:
    units = tuple(UnitHolders(UnitName(f"stage-{stage}"), (holder,), 7) for stage, holder in enumerate((A, B)))
    reported = {holder: replace(peer(), lane=7, could_tokens_per_s=could) for holder, could in ((A, 900.0), (B, 150.0))}
    entries = {holder: PeerEntry(report, 95.0) for holder, report in reported.items()}
    shown = replace(picture(), units=units, are_stages=True, peers=entries)
    lines = status_lines(json.loads(json.dumps(status_json(shown, 100.0))))
    assert "stage-0: 1 serve, 0 to spare; 100 tokens/s of 900 that it could do" in lines
    assert "stage-1: 1 serve, 0 to spare; 100 tokens/s of 150 that it could do; the bottleneck" in lines
    assert f"lane 7: {peer_name(A)}, {peer_name(B)}; 100 tokens/s" in lines
    assert status_json(shown, 100.0)["tokens_per_s"] == 100.0
    assert status_json(replace(shown, are_stages=False), 100.0)["tokens_per_s"] == 200.0


def test_who_holds_a_later_stage_is_credited_by_its_commits_and_a_round_that_a_stage_lacks_is_told() -> None:
    units = tuple(UnitHolders(UnitName(f"stage-{stage}"), (holder,), 7) for stage, holder in enumerate((A, B)))
    reported = {
        units[0].unit: StageCommits({A: Counted(999, 9)}, {(7, 3): 4}, 7),
        units[1].unit: StageCommits({B: Counted(300, 2), A: Counted(50, 1)}, {}, 7),
    }
    entries = {holder: PeerEntry(peer(), 95.0) for holder in (A, B)}
    shown = replace(picture((timed(1, 300, 100),)), units=units, are_stages=True, peers=entries, stage_commits=reported)
    status = status_json(shown, 100.0)
    rows = [row for row in json.loads(json.dumps(status))["peers"] if row["peer"] in (A, B)]
    ledger = counted_by_peer(timed.row for timed in shown.rounds)
    assert [
        (row["tokens_counted"], row["rounds_counted"]) for row in sorted(rows, key=lambda row: row["peer"] != A)
    ] == [
        (ledger.get(A, Counted()).tokens + 50, ledger.get(A, Counted()).rounds + 1),
        (ledger.get(B, Counted()).tokens + 300, ledger.get(B, Counted()).rounds + 2),
    ]
    line = "lane 7: round 4 is not at stage-1: no commit there counts it, and the other stages count one more round of this lane"
    assert line in status_lines(json.loads(json.dumps(status)))


def test_lines_say_what_all_peers_together_moved_of_each_unit() -> None:
    trunk, expert = UnitName("trunk"), UnitName("expert-0")
    first = replace(peer(), unit_bytes=(UnitBytes(trunk, 2_000_000, 1_000_000), UnitBytes(expert, 500, 0)))
    second = replace(peer(), unit_bytes=(UnitBytes(trunk, 1_000_000, 0),))
    shown = replace(picture(), peers={A: PeerEntry(first, 95.0), B: PeerEntry(second, 95.0)})
    lines = status_lines(json.loads(json.dumps(status_json(shown, 100.0))))
    assert "moved by the peers: expert-0 500 B up, 0 B down; trunk 3.0 MB up, 1.0 MB down" in lines
    assert not any("moved by" in line for line in status_lines(status_json(picture(), 100.0)))


def test_lines_end_with_the_hosts_words_about_the_run() -> None:
    lines = status_lines({"page": {"join": "ask me", "contact": "host@example.org"}})
    assert lines[-2:] == ["contact: host@example.org", "join: ask me"]
    assert status_lines({"page": "nonsense"}) == status_lines({})


def test_empty_or_strange_status_is_no_error() -> None:
    assert status_lines({})
    assert status_lines({"peers": [{}], "rounds": [{}], "checkpoints": [{}], "eta_s": "soon"})


def test_a_strangers_words_cannot_move_the_cursor() -> None:
    lines = status_lines({"run": "r\x1b[2J", "peers": [{"name": "calm-otter", "state": "training\x1b]0;owned\x07\n"}]})
    assert all(line.isprintable() for line in lines)
    assert any("\\x1b[2J" in line for line in lines)


def test_the_share_that_was_read_of_each_source_is_told() -> None:
    rows = [{"name": "talk", "tokens": 75, "share": 0.75}, {"name": "books", "tokens": 25, "share": 0.25}]
    assert "text read: talk 75%, books 25%" in status_lines({"sources": rows})
    assert "text read: none yet" in status_lines({"sources": [{"name": "talk", "tokens": 0, "share": None}]})


def test_energy_of_the_peers_is_told_with_the_carbon_of_what_is_known() -> None:
    sums = EnergySums(2, kwh=3.5, tokens=1_000_000, carbon_kg=0.7, carbon_share=0.5)
    assert "energy: 3.5 kWh by 2 peers with a meter, 12.6 J a token, 0.7 kg of CO2 for 50% of it" in status_lines(
        {"energy": sums.json()}
    )
    alone = EnergySums(1, kwh=3.5)
    assert "energy: 3.5 kWh by 1 peer with a meter" in status_lines({"energy": alone.json()})
    assert not [line for line in status_lines({"energy": EnergySums().json()}) if line.startswith("energy")]
