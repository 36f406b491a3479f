"""The host's own settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.policy.config import HostConfig
from protocol.errors import ConfigError


@pytest.fixture(autouse=True)
def no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostConfig, "file", staticmethod(lambda: tmp_path / "host.toml"))


def test_flags_win_over_variables_and_none_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTLUCK_HOST_GRPC_PORT", "4000")
    assert HostConfig.load({"grpc_port": None}).grpc_port == 4000
    assert HostConfig.load({"grpc_port": 5000}).grpc_port == 5000


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"grpc_port": 70000}, "grpc_port is 70000"),
        ({"invite_uses": 0}, "invite_uses is 0"),
        ({"typo": 1}, "typo"),
        ({"announce_host": "http://a"}, "an address or a name alone"),
    ],
)
def test_value_that_cannot_work_names_the_key_and_the_ways_to_set_it(flags: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        HostConfig.load(flags)
    assert "POTLUCK_HOST_" in caught.value.remedy


def test_file_nested_without_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "host.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match=r"host\.toml cannot be read"):
        HostConfig.load({})


def test_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTLUCK_HOST_GRPC_PRT", "4000")
    with pytest.raises(ConfigError, match="POTLUCK_HOST_GRPC_PORT"):
        HostConfig.load({})


def test_a_notice_address_is_shown_kept_and_refused_without_its_secret_path() -> None:
    config = HostConfig.load({"notify_url": "https://hooks.example.org/c2VjcmV0"})
    assert config.notify_url == "https://hooks.example.org/c2VjcmV0"
    assert config.model_dump(mode="json")["notify_url"] == "https://hooks.example.org"
    assert "c2VjcmV0" not in repr(config)
    with pytest.raises(ConfigError, match=r"notify_url .* http on this machine") as caught:
        HostConfig.load({"notify_url": "http://hooks.example.org/c2VjcmV0"})
    assert "c2VjcmV0" not in caught.value.one_line()
