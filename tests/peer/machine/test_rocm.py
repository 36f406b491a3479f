"""AMD cards get their fast attention, unless the owner says otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from peer.machine.rocm import FAST_ATTENTION, rocm_environment
from peer.training import worker_process


def test_the_switch_is_set_where_the_driver_is_and_its_owner_has_not_set_it(tmp_path: Path) -> None:
    driver = tmp_path / "kfd"
    assert rocm_environment(driver, {}) == {}
    driver.touch()
    assert rocm_environment(driver, {}) == {FAST_ATTENTION: "1"}
    assert rocm_environment(driver, {FAST_ATTENTION: "0"}) == {}


def test_a_training_process_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "rocm_environment", lambda: {FAST_ATTENTION: "1"})
    assert worker_process._environment()[FAST_ATTENTION] == "1"
