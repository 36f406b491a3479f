from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from peer.settings.config import PeerConfig, whole_bytes
from protocol.errors import ConfigError
from protocol.identity.chosen_name import ChosenName


@pytest.fixture(autouse=True)
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "peer.toml"
    monkeypatch.setattr(PeerConfig, "file", staticmethod(lambda: path))
    return path


def test_flags_win_over_variables_over_the_file(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config_file.write_text('slowdown = 2.0\nhttp_port = 1\ndevice = "cpu"\n', encoding="utf8")
    monkeypatch.setenv("POTLUCK_PEER_HTTP_PORT", "2")
    monkeypatch.setenv("POTLUCK_PEER_DEVICE", "cuda")
    config = PeerConfig.load({"device": "mps", "listen_port": None})
    assert (config.slowdown, config.http_port, config.device, config.listen_port) == (2.0, 2, "mps", 0)


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({"slowdown": 0.5}, "slowdown is 0.5"),
        ({"http_port": 70000}, "http_port is 70000"),
        ({"http_port": -1}, "http_port is -1"),
        ({"device": "abacus"}, "device is 'abacus'"),
        ({"num_threads": "many"}, "num_threads is 'many'"),
        ({"slowdonw": 3}, "slowdonw is 3"),
    ],
)
def test_value_that_cannot_work_is_named_with_what_was_expected(flags: dict[str, object], found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PeerConfig.load(flags)
    assert found in caught.value.found
    assert caught.value.expected
    assert "--" in caught.value.remedy


def test_nickname_and_team_come_from_flag_variable_and_file_and_a_hostile_one_is_refused(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_file.write_text('nickname = "file"\nteam = " oak "\n', encoding="utf8")
    assert PeerConfig.load({}).chosen == ChosenName("file", "oak")
    monkeypatch.setenv("POTLUCK_PEER_NICKNAME", "variable")
    assert PeerConfig.load({}).nickname == "variable"
    assert PeerConfig.load({"nickname": "flag"}).nickname == "flag"
    for hostile in ("x" * 10_000, "a\nb", "\x1b[31mred", "\u202egnp"):
        with pytest.raises(ConfigError, match="printable characters") as refused:
            PeerConfig.load({"team": hostile})
        assert "peer setting team is" in refused.value.found


def test_unknown_key_in_the_file_is_refused(config_file: Path) -> None:
    config_file.write_text("slowdonw = 3.0\n", encoding="utf8")
    with pytest.raises(ConfigError, match="slowdonw"):
        PeerConfig.load({})


def test_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTLUCK_PEER_SLOWDONW", "3.0")
    with pytest.raises(ConfigError, match="POTLUCK_PEER_SLOWDOWN"):
        PeerConfig.load({})


def test_broken_file_is_named(config_file: Path) -> None:
    config_file.write_text("slowdown = = 3\n", encoding="utf8")
    with pytest.raises(ConfigError, match=r"peer\.toml"):
        PeerConfig.load({})


def test_file_nested_without_end_is_named(config_file: Path) -> None:
    config_file.write_text("a = " + "[" * 100_000)
    with pytest.raises(ConfigError, match=r"peer\.toml cannot be read"):
        PeerConfig.load({})


def test_settings_cannot_be_changed_afterwards() -> None:
    config = PeerConfig()
    with pytest.raises(ValidationError):
        config.slowdown = 2.0


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({"weekly_hours": "always"}, "weekly_hours has 'always'"),
        ({"expert": "one"}, "expert is 'one'"),
        ({"expert": "1,1"}, "expert is '1,1'"),
        ({"time_zone": "Mars/Olympus"}, "time_zone is 'Mars/Olympus'"),
        ({"time_zone": "Europe/Paaris"}, "set it with --time-zone, "),
        ({"time_zone": "/etc/passwd"}, "time_zone is '/etc/passwd'"),
        ({"time_zone": "../../etc"}, "time_zone is '../../etc'"),
        ({"time_zone": "Europe"}, "time_zone is 'Europe'"),
        ({"max_gpu_celsius": 1000}, "max_gpu_celsius is 1000"),
        ({"max_cpu_celsius": -1}, "max_cpu_celsius is -1"),
        ({"max_gpu_memory_gb": 0}, "max_gpu_memory_gb is 0"),
        ({"max_memory_gb": 0}, "max_memory_gb is 0"),
        ({"max_memory_gb": -1.5}, "max_memory_gb is -1.5"),
        ({"max_memory_gb": float("nan")}, "max_memory_gb is nan"),
        ({"max_memory_gb": float("inf")}, "max_memory_gb is inf"),
        ({"max_memory_gb": "2GB"}, "max_memory_gb is '2GB'"),
    ],
)
def test_control_that_cannot_be_kept_is_one_line_before_anything_starts(flags: dict[str, object], found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PeerConfig.load(flags)
    assert found in caught.value.one_line()
    assert caught.value.expected


@pytest.mark.parametrize(("gigabytes", "num_bytes"), [(None, 0), (2.5, 2_500_000_000), (1e-12, 1)])
def test_gigabytes_are_a_thousand_million_bytes_and_the_smallest_limit_is_one(
    gigabytes: float | None, num_bytes: int
) -> None:
    assert whole_bytes(gigabytes) == num_bytes
