"""The folders of a user, also of one that the system does not know and that has no HOME."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from averaging.host.settings import DaemonSettings, sources_of
from averaging.system.usual_folders import config_folder, home_folder, state_root
from protocol.errors import ConfigError


class Settings(DaemonSettings):
    model_config = sources_of("tried")

    a_port: int = 1


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    users: dict[int, pwd.struct_passwd] = {}
    monkeypatch.setattr(pwd, "getpwuid", users.__getitem__)


@pytest.mark.usefixtures("no_home")
def test_no_home_is_one_line_that_names_what_helps() -> None:
    with pytest.raises(ConfigError, match=r"no home folder.*HOME or XDG_STATE_HOME.*--state-dir"):
        state_root()
    with pytest.raises(ConfigError, match="--dir"):
        state_root("--dir")
    assert home_folder() == ""


@pytest.mark.usefixtures("no_home")
def test_without_a_home_settings_come_from_flags_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_folder() is None
    assert Settings.load({}).a_port == 1
    monkeypatch.setenv("POTLUCK_TRIED_A_PORT", "x")
    with pytest.raises(ConfigError) as caught:
        Settings.load({})
    assert caught.value.remedy == "set it with POTLUCK_TRIED_A_PORT"


@pytest.mark.usefixtures("no_home")
def test_a_variable_of_its_own_replaces_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_root() == tmp_path / "potluck"


def test_answer_of_an_older_library_that_is_no_path_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platformdirs.user_config_path", lambda _name: Path("~/.config/potluck"))
    assert config_folder() is None
