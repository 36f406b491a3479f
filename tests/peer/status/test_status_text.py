from __future__ import annotations

import pytest

from averaging.data.shard_exchange import SHARD_CHANNEL
from peer.status.status import BulkTraffic, LastRound, PeerStatus, UnitPlace
from peer.status.status_text import (
    RUN_IS_COMPLETE,
    TEXT_CHANNEL,
    energy_line,
    next_round,
    progress,
    run_is_over,
    state_and_reason,
    status_lines,
    status_rows,
)

STATUS = PeerStatus(
    peer="12D3KooW",
    name="calm-otter",
    run="tiny",
    state="training",
    reason="training",
    round_waiting="round 8 is due in 30 s",
    restarted="restarted at round 3; nothing was lost",
    credential_left_s=30 * 86400.0,
    host_heard_ago_s=4.0,
    index=7,
    total_tokens=700,
    target_total_tokens=1000,
    tokens_per_s=1234.0,
    loss=1.386,
    bytes_up=2_500_000,
    worker_restarts=2,
    is_sound=False,
)


def test_peer_apart_from_the_run_says_so() -> None:
    apart = STATUS.model_copy(update={"apart": "apart from the run for 2 min"})
    assert status_lines(apart)[1] == "apart from the run for 2 min"


def test_data_that_came_during_a_round_is_told_beside_the_bytes_of_the_round() -> None:
    assert TEXT_CHANNEL == SHARD_CHANNEL
    data = BulkTraffic(way="direct", channel=SHARD_CHANNEL, unit="", codec="", bytes_up=0, bytes_down=18_600_000)
    last = LastRound(index=1, members=("p", "q"), weights={}, bytes_up=790_000, bytes_down=19_390_000)
    first = STATUS.model_copy(update={"last_round": last.model_copy(update={"bulk": (data,)})})
    told = dict(status_rows(first))["last round"]
    assert told.endswith("790.0 kB up, 790.0 kB down, beside 0 B up, 18.6 MB down of the run's data")
    later = STATUS.model_copy(update={"last_round": last})
    assert dict(status_rows(later))["last round"].endswith("790.0 kB up, 19.4 MB down")


def test_what_its_owner_allows_is_told_once() -> None:
    quarter = {"allowed_share": 0.25, "allowed_reason": "trains 25% of the time\x1b"}
    assert "trains 25% of the time\\x1b" in status_lines(STATUS.model_copy(update=quarter))
    pause = {"allowed_share": 0.0, "allowed_reason": "paused until `potluck resume`"}
    for state, is_told in (("joining", True), ("catching up", True), ("waiting", True), ("left on Mon", False)):
        text = "\n".join(status_lines(STATUS.model_copy(update=pause | {"state": state, "reason": "starting"})))
        assert text.count("potluck resume") == is_told, state
    paused = {
        "state": "paused",
        "allowed_share": 0.0,
        "reason": "paused by its owner",
        "allowed_reason": "paused by its owner",
    }
    assert "\n".join(status_lines(STATUS.model_copy(update=paused))).count("paused by its owner") == 1


def test_lines_say_who_where_why_what_and_what_it_takes() -> None:
    text = "\n".join(status_lines(STATUS))
    for said in (
        "calm-otter in tiny: training\n",
        "round 7, 700 of 1,000 tokens",
        "1,234 tokens/s, 2.000 bits per byte",
        "2.5 MB up",
        "round 8 is due in 30 s",
        "host: heard 4 s ago; credential good for 30.0 days\n",
        "restarted at round 3",
        "the training process was started again 2 times",
        "differs from the one",
    ):
        assert said in text


@pytest.mark.parametrize(("standing", "words"), [("stranger", "together a quarter"), ("member", "sums slices")])
def test_a_peer_of_an_open_run_is_told_its_standing_and_what_follows_from_it(standing: str, words: str) -> None:
    line = next(line for line in status_lines(STATUS.model_copy(update={"standing": standing})) if "standing" in line)
    assert words in line
    assert not any("standing" in line for line in status_lines(STATUS.model_copy(update={"standing": "keeper"})))


def test_a_stranger_whose_work_nobody_can_do_again_is_told_why_it_becomes_no_member_and_what_to_do() -> None:
    found = {"standing": "stranger", "untellable": "several replicas train here"}
    line = next(line for line in status_lines(STATUS.model_copy(update=found)) if "standing" in line)
    assert "not here: several replicas train here; ask the run's owner for an invite" in line
    keeper = status_lines(STATUS.model_copy(update={**found, "standing": "keeper"}))
    assert not any("replicas" in line for line in keeper)


def test_bytes_of_each_unit_are_told_where_there_are_several() -> None:
    def moved(unit: str, way: str, up: int) -> BulkTraffic:
        return BulkTraffic(way=way, channel="scatter", unit=unit, codec="int8", bytes_up=up, bytes_down=7)

    bulk = (
        moved("trunk", "direct", 3_000_000),
        moved("trunk", "libp2p", 1_000_000),
        moved("expert-1", "direct", 9),
        moved("", "direct", 1),
    )
    expert = UnitPlace(unit="expert-1", index=3, holders=2, tokens_ready=0, waiting="")
    status = STATUS.model_copy(update={"bulk": bulk, "units": (expert,)})
    of_units = "expert-1 9 B up, 7 B down; trunk 4.0 MB up, 14 B down"
    traffic = f"traffic: 2.5 MB up, 0 B down, 75% of it straight to other peers; of it {of_units}"
    assert traffic in status_lines(status)
    assert status.model_copy(update={"units": ()}).unit_bytes == {}


def test_what_is_not_training_is_told_with_how_long_it_has_been_so() -> None:
    waiting = STATUS.model_copy(update={"state": "waiting", "state_s": 200.0, "reason": "for one more peer"})
    assert status_lines(waiting)[0] == "calm-otter in tiny: waiting for 3 min: for one more peer"
    for update in ({"state_s": 200.0}, {"state": "waiting", "state_s": 1.0}):
        assert " for " not in status_lines(STATUS.model_copy(update=update))[0]


def test_next_round_is_told_by_its_tokens_and_by_when_it_is_opened_at_the_latest() -> None:
    assert next_round(STATUS) == ""
    found = {"round_tokens_ready": 50, "round_target_tokens": 200, "round_waited_s": 20.0, "round_longest_s": 60.0}
    status = STATUS.model_copy(update=found)
    assert "next round: 50 of 200 tokens ready, at the latest in 40 s" in status_lines(status)
    for enough in ({"round_tokens_ready": 200}, {"round_waited_s": 61.0}):
        due = status.model_copy(update=enough)
        assert (due.round_share, next_round(due).endswith(" tokens ready, due")) == (1.0, True)
    nothing = status.model_copy(update={"round_tokens_ready": 0, "round_waited_s": 61.0})
    assert (nothing.round_share, next_round(nothing)) == (0.0, "next round: 0 of 200 tokens ready")


def test_time_left_of_the_run_is_told_once_it_is_known() -> None:
    assert "round 7, 700 of 1,000 tokens, 70% of the run" in status_lines(STATUS)
    status = STATUS.model_copy(update={"eta_s": 300.0, "total_tokens": 999})
    assert "round 7, 999 of 1,000 tokens, 99% of the run, 5 min to go" in status_lines(status)


def test_newcomer_and_ended_credential_are_said() -> None:
    text = "\n".join(status_lines(PeerStatus(peer="p", name="n", reason="starting\x1b")))
    assert "n in no run yet: joining: starting\\x1b" in text
    assert "round 0" not in text
    assert "host:" not in text
    ended = STATUS.model_copy(update={"credential_left_s": -5.0, "is_host_away": True})
    assert "(away); credential ended" in "\n".join(status_lines(ended))


def test_a_run_whose_last_round_brought_more_than_was_left_is_all_of_it() -> None:
    assert "100% of the run" in progress(STATUS.model_copy(update={"total_tokens": 1049}))


def test_share_of_the_run_below_a_tenth_has_a_decimal_and_is_not_told_as_nothing() -> None:
    early = STATUS.model_copy(update={"total_tokens": 24_576, "target_total_tokens": 30_000_000})
    assert progress(early) == "round 7, 24,576 of 30,000,000 tokens, less than 0.1% of the run"
    assert "0.1% of the run" in progress(early.model_copy(update={"total_tokens": 31_000}))


def test_offline_peer_says_one_sentence_about_it_and_nothing_of_rounds_or_other_branches() -> None:
    offline = "offline for 45 s: no other peer and no host answers; trains on, counted later"
    lines = status_lines(STATUS.model_copy(update={"offline": offline, "apart": "apart from the run"}))
    assert lines[1] == offline
    assert "round 8 is due" not in "\n".join(lines)
    assert "apart" not in "\n".join(lines)


def test_complete_run_is_told_with_what_this_peer_gave() -> None:
    done = {"state": "finished", "tokens_counted": 325_632, "total_tokens": 600_000, "index": 13, "rounds_counted": 13}
    (last,) = [line for line in status_lines(STATUS.model_copy(update=done)) if line.startswith("The run is complete")]
    assert last == "The run is complete. You trained 325,632 of its tokens (54%); 13 of 13 rounds counted your work."


def test_complete_run_is_told_once_and_without_a_speed_or_a_time_to_go() -> None:
    over = {"state": "finished", "reason": "the run is complete; its model: potluck", "eta_s": 0.0, "state_s": 90.0}
    lines = status_lines(
        STATUS.model_copy(update=over | {"round_waiting": "the run is over", "round_target_tokens": 0})
    )
    assert lines[0].endswith(": finished; its model: potluck")
    text = "\n".join(lines)
    assert text.lower().count("the run is complete") == 1
    assert not any(word in text for word in ("to go", "tokens/s", "the run is over"))


@pytest.mark.parametrize("state", ["left on Mon 30 Nov 02:09", "ended on Mon 30 Nov 02:07"])
def test_peer_that_is_gone_has_no_speed_and_nothing_to_come(state: str) -> None:
    gone = {"state": state, "reason": "as asked", "eta_s": 60.0, "round_target_tokens": 100, "round_tokens_ready": 7}
    lines = status_lines(STATUS.model_copy(update=gone | {"state_s": 0.0}))
    assert lines[0].endswith(f": {state}: as asked")
    assert not any(word in "\n".join(lines) for word in ("to go", "tokens/s", "next round"))


def test_peer_that_is_gone_holds_no_memory_and_hears_nobody() -> None:
    heard = {"host_heard_ago_s": 4.0, "credential_left_s": 60.0, "memory_bytes": 10**9}
    here, gone = (
        status_lines(STATUS.model_copy(update=heard | {"state": state})) for state in ("training", "left on Mon 30 Nov")
    )
    assert any(line.startswith("memory: 1.0 GB") for line in here)
    assert any(line.startswith("host: heard 4 s ago") for line in here)
    assert not any(line.startswith(("memory:", "host:")) for line in gone)


def test_what_a_waiting_peer_waits_for_goes_on_the_sentence() -> None:
    reason = "for peers: 1 of at least 2 are ready"
    waiting = STATUS.model_copy(update={"state": "waiting", "reason": reason, "state_s": 0.0})
    assert state_and_reason(waiting) == f"waiting {reason}"


def test_complete_run_is_told_with_what_all_starts_of_this_peer_gave() -> None:
    done = {"state": "finished", "total_tokens": 600_000, "index": 13, "tokens_counted": 10_000, "rounds_counted": 1}
    whole = done | {"run_tokens_counted": 325_632, "run_rounds_counted": 12}
    told = "You trained 325,632 of its tokens (54%); 12 of 13 rounds counted your work."
    assert told in "\n".join(status_lines(STATUS.model_copy(update=whole)))


def test_words_of_insiders_are_on_no_line() -> None:
    everything = STATUS.model_copy(
        update={
            "bulk": (BulkTraffic(way="direct", channel="scatter", unit="", codec="", bytes_up=1, bytes_down=1),),
            "bans": 1,
        }
    )
    text = "\n".join(status_lines(everything))
    assert "1 peer banned" in text
    for word in ("bulk", "lineage", "quorum", "roster", "bans", "acks", "delta", "coordinator"):
        assert word not in text


def test_how_the_card_trains_is_told_with_its_memory_and_share_once_they_are_known() -> None:
    assert not any(line.startswith("plan:") for line in status_lines(STATUS))
    reason = "RTX 3060, 12 GB: bf16, compiled, 8.9 of 11.2 GB"
    planned = STATUS.model_copy(update={"card_plan": reason, "card_expected_bytes": 8_900_000_000})
    assert f"plan: {reason}" in status_lines(planned)
    at_work = planned.model_copy(update={"card_used_bytes": 8_700_000_000, "mfu": 0.412})
    assert f"plan: {reason}; 8.7 GB used, 41% of the card's peak" in status_lines(at_work)


def test_plan_of_the_card_tells_skipped_steps_and_why_layers_are_not_compiled() -> None:
    note = "layers are not compiled: no C compiler"
    planned = STATUS.model_copy(update={"card_plan": "CPU: float32", "skipped_steps": 3, "compile_note": note})
    assert f"plan: CPU: float32; 3 steps skipped, whose gradient was not finite; {note}" in status_lines(planned)


def test_the_owners_name_for_this_peer_stands_behind_its_own_and_cannot_move_the_cursor() -> None:
    named = STATUS.model_copy(update={"nickname": "anna\x1b[2J", "team": "oak"})
    lines = status_lines(named)
    assert lines[0] == "calm-otter (anna\\x1b[2J) in tiny: training"
    assert "team: oak" in lines


def test_joining_peer_tells_no_progress_before_its_state_is_read() -> None:
    joining = PeerStatus(peer="p", name="sage", run="tiny", state="joining", reason="starting the network")
    assert not [line for line in status_lines(joining) if line.startswith("round")]
    known = status_lines(joining.model_copy(update={"target_total_tokens": 8_000_000}))
    assert "round: not known yet, 8,000,000 tokens in all" in known
    assert "0%" not in "".join(known)


def test_the_share_of_each_source_of_a_mixture_is_told() -> None:
    mixed = STATUS.model_copy(update={"source_tokens": (300, 100)})
    assert "source 1: 75%, source 2: 25%" in "\n".join(status_lines(mixed))
    assert "source 1" not in "\n".join(status_lines(STATUS))


def test_energy_is_told_with_its_carbon_or_why_it_is_not_known() -> None:
    status = PeerStatus(peer="p", name="n", energy_joules=7.2e6, tokens_trained=1_000_000, grid_g_per_kwh=344.0)
    assert energy_line(status) == "2 kWh since the start, 7.2 J a token, 0.688 kg of CO2"
    alone = PeerStatus(peer="p", name="n", energy_joules=0.0, energy_note="the processor's meter is for root alone")
    assert energy_line(alone) == "0 kWh since the start; the processor's meter is for root alone"
    assert energy_line(PeerStatus(peer="p", name="n", energy_note="no meter")) == "not known: no meter"
    assert energy_line(PeerStatus(peer="p", name="n")) == ""
    assert dict(status_rows(status))["energy"] == energy_line(status)


def test_a_finished_peer_says_that_the_host_lacks_the_last_rounds() -> None:
    command = "potluck checkpoint export latest OUT_DIR"
    assert run_is_over(command, has_host_all=True) == f"{RUN_IS_COMPLETE}; its model: {command}"
    assert "when it is back, run potluck join once more" in run_is_over(command, has_host_all=False)


def test_audits_of_others_work_have_a_line_once_there_are_some() -> None:
    done = STATUS.model_copy(update={"audits": 3, "last_audit": "tidy-bean: it told no steps"})
    assert "audits: 3 of others' work; the last one of tidy-bean: it told no steps" in status_lines(done)
    assert not any(line.startswith("audit") for line in status_lines(STATUS))


def test_an_audit_under_way_has_a_line_of_its_own() -> None:
    now = "doing 32 steps of tidy-bean again: 5 of 64 taken"
    assert f"audit now: {now}" in status_lines(STATUS.model_copy(update={"audit_now": now}))
