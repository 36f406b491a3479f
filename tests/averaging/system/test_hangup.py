"""A terminal that is closed while a command runs."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from averaging.system.hangup import GOODBYES, ending_as_ctrl_c_does, outlive_the_terminal


def test_output_for_a_closed_terminal_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, ours = os.openpty()
    with monkeypatch.context() as patch, open(ours, "w", encoding="utf8") as stream:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        outlive_the_terminal()
        print("before", flush=True)
        assert os.read(terminal, 100) == b"before\r\n"
        os.close(terminal)
        print("after", flush=True)
        print("after", file=sys.stderr, flush=True)


def test_other_outputs_keep_their_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", encoding="utf8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        outlive_the_terminal()
        assert sys.stdout is full


@pytest.mark.parametrize("number", GOODBYES)
def test_hangup_interrupts_a_command_as_ctrl_c_does(number: signal.Signals) -> None:
    def command() -> None:
        with ending_as_ctrl_c_does():
            assert signal.getsignal(number) is not signal.SIG_DFL, "pytest would end here"
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        command()
    assert signal.getsignal(number) is signal.SIG_DFL


def test_hangup_interrupts_also_where_ctrl_c_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt), ending_as_ctrl_c_does():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGINT, before)


def test_hangup_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_as_ctrl_c_does():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
