from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from averaging.host.setting_sources import settings_with_origins

FILE = "somebody.toml"


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="POTLUCK_TRIED_", extra="forbid", frozen=True)

    a_port: int = 1
    b_port: int = 1
    c_port: int = 1
    d_port: int = 1

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], **sources: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = TomlConfigSettingsSource(settings_cls, toml_file=FILE)
        return sources["init_settings"], sources["env_settings"], file


@pytest.mark.parametrize("variable", ["POTLUCK_TRIED_{}", "potluck_tried_{}"], ids=["capitals", "small"])
def test_flag_goes_before_variable_before_file_before_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(FILE).write_text("a_port = 4\nb_port = 4\nc_port = 4\n", encoding="utf8")
    for name in ("A_PORT", "B_PORT"):
        monkeypatch.setenv(variable.format(name), "3")
    told = settings_with_origins(Settings(a_port=2), {"a_port": 2, "b_port": None}, Path(FILE))
    assert [(s.name, s.value, s.origin) for s in told] == [
        ("a_port", 2, "flag --a-port"),
        ("b_port", 3, "variable POTLUCK_TRIED_B_PORT"),
        ("c_port", 4, f"file {FILE}"),
        ("d_port", 1, "default"),
    ]


def test_without_a_file_all_is_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {s.origin for s in settings_with_origins(Settings(), {}, Path(FILE))} == {"default"}
