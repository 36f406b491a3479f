"""The words by which the first rank leads the others."""

from __future__ import annotations

import select
import socket
import subprocess
import sys

import pytest

from peer.training.supervision import actions
from peer.training.supervision.actions import (
    END,
    STEP,
    asks_if_written,
    boundary_word,
    read_boundary,
    timeout_of,
    written_within,
)
from peer.training.worker_channel import Area


@pytest.mark.parametrize("timeout_s", [None, 0.0, 0.1, 3600.0])
def test_the_time_to_wait_for_a_snapshot_comes_as_it_was_sent(timeout_s: float | None) -> None:
    action = written_within(timeout_s)
    assert asks_if_written(action)
    assert timeout_of(action) == timeout_s


def test_a_step_and_the_end_ask_for_no_snapshot() -> None:
    assert not asks_if_written(STEP)
    assert not asks_if_written(END)


def test_a_boundary_takes_one_byte_and_tells_the_units_whose_values_came() -> None:
    assert boundary_word(True, []) == b"1"
    assert boundary_word(False, []) == b"0"
    for word in ((True, [(0, Area.IN)]), (False, [(12, Area.OUT), (3, Area.IN)])):
        assert read_boundary(boundary_word(*word)) == word


PROGRAM = """
import socket, sys, threading
from peer.training.supervision import actions
actions.LEAVE_WITHIN_S = 0.2
channel = socket.socket(fileno=int(sys.argv[1]))
actions.leave_after_daemon(channel, 7)
print("waits", flush=True)
threading.Event().wait(300)
"""


def test_a_rank_leaves_some_time_after_its_daemon_whatever_it_waits_for() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", PROGRAM, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process:
        ours.sendall(b"a plan that nobody read")
        assert process.stdout.readline() == b"waits\n"
        output = select.poll()  # not `select.select`, which takes no descriptor above 1,023
        output.register(process.stdout, select.POLLIN)
        assert output.poll(500) == [], "it stays while the daemon is there"
        ours.close()
        assert process.wait(100.0) == 7
    assert actions.LEAVE_WITHIN_S > 30.0
