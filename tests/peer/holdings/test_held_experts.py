"""A peer's experts over its restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from averaging.network.seams.offload import ThreadOffload
from peer.holdings.held_experts import FILE_NAME, OwnExperts
from peer.holdings.verified_holders_core import Believed, everybody
from peer.settings.config import PeerConfig
from protocol.errors import ConfigError
from protocol.ids import PeerId
from protocol.run.manifest import RunConfig, default_run_toml, parse_run_config
from tests.peer.holdings.test_held_experts_core import ME, A, B, _start
from tests.protocol.run.test_experts_section import expert_toml

CONFIG = parse_run_config(expert_toml())
LATE = PeerId("late")


def _own(folder: Path, expert: str = "", config: RunConfig = CONFIG) -> OwnExperts:
    return OwnExperts(PeerConfig(expert=expert), config, folder, ThreadOffload())


async def test_a_founder_holds_what_the_start_says_and_so_after_a_restart(tmp_path: Path) -> None:
    own = _own(tmp_path)
    assert (own.wanted, own.held, own.room) == ((), (), 1)
    assert await own.settle(_start(), ME, everybody({})) == (1,)
    assert (own.wanted, own.held) == ((1,), (1,))
    again = _own(tmp_path)
    assert again.wanted == (1,)
    assert await again.settle(_start(), LATE, everybody({A: (1,), B: (1,)})) == (1,)


async def test_who_comes_late_counts_founders_that_have_not_said_yet_what_they_hold(tmp_path: Path) -> None:
    for listed in ({A: (), B: (), ME: ()}, {}):
        (tmp_path / FILE_NAME).unlink(missing_ok=True)
        assert await _own(tmp_path).settle(_start(), LATE, everybody(listed)) == (0,)


async def test_who_only_says_that_it_holds_an_expert_is_counted_among_equals_alone(tmp_path: Path) -> None:
    """By what is proven expert 1 lacks a holder, whoever claims it; where all is alike what is claimed decides."""
    for held, claimed, taken in (({A: (0,)}, {B: (1,)}, 1), ({}, {B: (0,)}, 1), ({A: (0,), ME: (1,)}, {B: (1,)}, 0)):
        (tmp_path / FILE_NAME).unlink(missing_ok=True)
        for seen in (Believed(held, claimed, {}), Believed(held, {}, claimed)):
            (tmp_path / FILE_NAME).unlink(missing_ok=True)
            assert await _own(tmp_path).settle(_start(), LATE, seen) == (taken,)


async def test_the_owners_word_replaces_what_was_kept(tmp_path: Path) -> None:
    await _own(tmp_path).settle(_start(), ME, everybody({}))
    own = _own(tmp_path, "0")
    assert own.wanted == (0,)
    assert await own.settle(_start(), ME, everybody({})) == (0,)
    assert _own(tmp_path).wanted == (0,)


async def test_a_damaged_file_is_another_choice(tmp_path: Path) -> None:
    for text in ("[7]", "[true]", "{", '"0"'):
        (tmp_path / FILE_NAME).write_text(text)
        assert _own(tmp_path).wanted == ()


def test_experts_of_another_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expert 2 of a run of 2"):
        _own(tmp_path, "2")
    with pytest.raises(ConfigError, match="a run without experts"):
        _own(tmp_path, "0", parse_run_config(default_run_toml()))


async def test_a_run_without_experts_has_none(tmp_path: Path) -> None:
    own = _own(tmp_path, config=parse_run_config(default_run_toml()))
    assert await own.settle(_start(), ME, everybody({})) == ()
    assert not (tmp_path / FILE_NAME).exists()
