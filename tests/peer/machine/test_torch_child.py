"""A child is asked in a process of its own, from a folder with nothing in it, and not for ever."""

from __future__ import annotations

import subprocess

import pytest

from peer.machine.torch_child import ask_torch


def test_all_that_the_program_prints_comes_back_with_its_exit_code() -> None:
    done = ask_torch("import os, sys; print(os.getcwd()); print('why', file=sys.stderr); sys.exit(3)", 60.0)
    assert (done.stdout, done.stderr, done.returncode) == ("/\n", "why\n", 3)


def test_a_program_that_does_not_answer_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        ask_torch("import threading; threading.Event().wait()", 0.5)
