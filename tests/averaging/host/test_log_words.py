from __future__ import annotations

from averaging.host.log_words import AGAIN_AFTER_S, AlreadySaid, warning_sentence


def test_warning_is_one_sentence_without_a_time_a_level_in_brackets_or_the_form_of_python() -> None:
    event = {"event": "generation_not_written", "level": "warning", "timestamp": "2026", "reason": "it is read-only"}
    assert (
        warning_sentence(event | {"index": 7}) == "warning: the newest state was not saved: it is read-only (index 7)"
    )


def test_reason_that_is_a_whole_sentence_stands_alone() -> None:
    event = {"event": "nobody_can_connect", "level": "warning", "reason": "Others cannot connect to this machine"}
    assert warning_sentence(event) == "warning: Others cannot connect to this machine"


def test_peer_is_told_by_its_name_and_members_as_a_list_without_brackets() -> None:
    banned = {"event": "peer_banned", "level": "warning", "peer": "12D3Koo", "name": "calm-otter", "reason": "noise"}
    assert warning_sentence(banned) == "warning: the host banned a peer: noise (name calm-otter)"
    assert warning_sentence({"event": "x_y", "level": "error", "members": ["a", "b"]}) == "error: x y (members a, b)"


def test_failure_with_a_traceback_points_at_the_log_and_a_stranger_gives_no_orders() -> None:
    said = warning_sentence({"event": "call_failed", "level": "error", "exc_info": True, "reason": "\x1b[2J"})
    assert said == "error: call failed: \\x1b[2J; the log has more: potluck logs"


def test_warning_that_comes_back_with_other_numbers_is_said_once_and_again_after_a_while() -> None:
    said = AlreadySaid()
    assert said.is_new("not written: state 7 at b39a1c44", 0.0)
    assert not said.is_new("not written: state 8 at 0139a1c4", 1.0)
    assert said.is_new("another thing", 1.0)
    assert said.is_new("not written: state 9 at b39a1c44", AGAIN_AFTER_S)


def test_full_disk_is_left_to_the_screen_whatever_it_refused() -> None:
    for event in ("task_failed", "generation_not_written", "switch_not_logged"):
        for reason in ("state 7: No space left on device", "state 7: Disk quota exceeded"):
            assert warning_sentence({"event": event, "level": "warning", "reason": reason}) == ""


def test_what_the_screen_tells_by_itself_is_not_told_twice() -> None:
    for event in ("apart", "worker_died", "state_differs"):
        assert warning_sentence({"event": event, "level": "warning", "reason": "a reason"}) == ""
