from __future__ import annotations

from pathlib import Path

import pytest

from averaging.system.process_record import running_here
from coordinator.run.hosted_folder import refuse_second_host
from coordinator.run.start_command import UNKNOWN, remember_command
from protocol.errors import MachineError


def test_second_host_of_a_folder_is_refused_with_the_command_that_ends_the_first(tmp_path: Path) -> None:
    remember_command(tmp_path, UNKNOWN)
    refuse_second_host(tmp_path)
    with running_here(tmp_path), pytest.raises(MachineError) as refused:
        refuse_second_host(tmp_path)
    assert (
        refused.value.one_line()
        == f"a host runs from {tmp_path} already; expected one host for a folder; potluck stop ends it"
    )


def test_peer_of_a_folder_is_no_second_host(tmp_path: Path) -> None:
    with running_here(tmp_path):
        refuse_second_host(tmp_path)
