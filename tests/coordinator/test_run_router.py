"""A router file that run.toml names is looked at before a run is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from averaging.data.document_router import fit_router
from coordinator.run_router import check_router
from protocol.errors import ConfigError
from protocol.manifest import RunConfig, parse_run_config
from tests.protocol.test_experts_section import EXPERTS, expert_toml


def _config(num_experts: int = 2) -> RunConfig:
    section = EXPERTS.replace("= 2", f"= {num_experts}", 1) + f'router = "words.router"\nholdings = {num_experts}\n'
    return parse_run_config(expert_toml(section=section))


def test_a_router_of_as_many_experts_is_taken(tmp_path: Path) -> None:
    router = fit_router([b"one text of words", b"another one, of others"], 2)
    (tmp_path / "words.router").write_bytes(router.to_bytes())
    check_router(_config(), tmp_path)


def test_a_run_that_names_none_needs_none(tmp_path: Path) -> None:
    check_router(parse_run_config(expert_toml()), tmp_path)


def test_a_router_that_is_not_there_or_of_other_experts_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"words\.router cannot be read: No such file") as caught:
        check_router(_config(), tmp_path)
    assert "leave it out" in caught.value.one_line()
    router = fit_router([b"one text of words", b"another one, of others"], 2)
    (tmp_path / "words.router").write_bytes(router.to_bytes())
    with pytest.raises(ConfigError, match=r"words\.router: a router file that begins"):
        check_router(_config(3), tmp_path)
