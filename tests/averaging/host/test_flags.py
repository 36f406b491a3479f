"""Flags that are made of settings, and those of our two daemons."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
import typer
from typer.testing import CliRunner

from averaging.host.flags import command_with_flags, flag_help, flags_given
from averaging.host.settings import DaemonSettings, Port, descriptions, sources_of
from coordinator.policy.config import HostConfig
from peer.settings.config import PeerConfig, PlaceConfig

GIVES = "if not given"


class Settings(DaemonSettings):
    model_config = sources_of("tried")

    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {"Shares": ("share", "device")}

    state_dir: Path = Path("there")
    """A folder."""

    a_port: Port | None = None
    """A port; any if not given."""

    device: Literal["cpu", "cuda"] = "cpu"
    """A device."""

    share: Annotated[float, "of the whole"] = 1.0
    """A share."""

    no_listen: bool = False
    """Take nothing."""

    shows: bool = True
    """Show it, as shows = true in [section] of a file."""


def _invoke(*arguments: str) -> tuple[list[object], str]:
    heard: list[object] = []
    app = typer.Typer()

    def look(
        context: typer.Context, words: list[str], loud: Annotated[bool, typer.Option("--loud", help="Shout.")] = False
    ) -> None:
        """Look around."""
        heard.extend((words, {k: v for k, v in flags_given(context).items() if v is not None}, loud))

    app.command(cls=command_with_flags(lambda: Settings))(look)
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False, env={"COLUMNS": "120"})
    assert (done.exit_code == 0) == bool(heard) or "--help" in arguments
    return heard, done.output


def test_a_command_hears_the_flags_that_were_given_and_none_of_the_others() -> None:
    given = ("--state-dir", "here", "--a-port", "7", "--share", "0.5", "--device", "x", "--no-listen", "--no-shows")
    flags = {"state_dir": Path("here"), "a_port": 7, "share": 0.5, "device": "x", "no_listen": True, "shows": False}
    assert _invoke("a", "b", *given, "--loud")[0] == [["a", "b"], flags, True]
    assert _invoke("a")[0] == [["a"], {}, False]


@pytest.mark.parametrize("arguments", [["a", "--a-port", "many"], ["a", "--num-threads", "1"], ["a", "--no-listen=1"]])
def test_a_flag_of_another_kind_or_command_is_refused(arguments: list[str]) -> None:
    assert _invoke(*arguments)[0] == []


def test_help_lists_arguments_then_settings_then_the_commands_own_options_then_panels_in_their_order() -> None:
    text = _invoke("--help")[1]
    words = ("words", "--state-dir", "--a-port", "--no-shows", "--loud", "--help", "Shares", "--share", "--device")
    places = [text.index(word) for word in words]
    assert places == sorted(places)
    assert "A share. Default: 1." in text


def test_help_shows_square_brackets_of_a_description() -> None:
    assert "as shows = true in [section] of a file." in " ".join(_invoke("--help")[1].split())


@pytest.mark.parametrize("settings", [PlaceConfig, PeerConfig, HostConfig])
def test_every_setting_but_the_folder_stands_in_one_panel_of_the_help(settings: type[DaemonSettings]) -> None:
    named = [name for names in settings.panels.values() for name in names]
    assert sorted(named) == sorted(set(settings.model_fields) - {"state_dir"})


def test_settings_are_not_imported_before_the_command_is_used() -> None:
    def settings() -> type[DaemonSettings]:
        raise AssertionError("asked for the settings")

    app = typer.Typer()
    app.command()(lambda: None)
    app.command("look", cls=command_with_flags(settings))(lambda: None)
    assert CliRunner().invoke(app, ["--help"], catch_exceptions=False).exit_code == 0


def test_a_setting_that_no_flag_can_give_is_refused() -> None:
    class Lists(DaemonSettings):
        ports: list[int] = []  # noqa: RUF012 - pydantic copies it

    app = typer.Typer()
    app.command(cls=command_with_flags(lambda: Lists))(lambda: None)
    with pytest.raises(TypeError, match=r"type list\[int\]: expected str"):
        CliRunner().invoke(app, [], catch_exceptions=False)


@pytest.mark.parametrize("settings", [PeerConfig, HostConfig])
def test_every_setting_says_what_it_is_and_what_holds_without_it(settings: type[DaemonSettings]) -> None:
    for name, field in settings.model_fields.items():
        reported = flag_help(descriptions(settings)[name], field)
        assert len(reported) > 20, name
        assert reported.endswith("."), name
        assert "Undefined" not in reported, name
        if not isinstance(field.default, bool):
            assert GIVES in reported or f"Default: {field.default}".removesuffix(".0") in reported, name


def test_doctor_knows_where_a_peer_would_be_and_nothing_else() -> None:
    assert set(PlaceConfig.model_fields) < set(PeerConfig.model_fields)
    assert inspect.getdoc(PlaceConfig)


def test_a_flag_may_have_a_second_name_for_the_same_setting() -> None:
    heard: list[dict[str, object]] = []
    app = typer.Typer()

    @app.command(cls=command_with_flags(lambda: PeerConfig))
    def join(context: typer.Context) -> None:
        heard.append(flags_given(context))

    for flag in ("--nickname", "--name"):
        result = CliRunner().invoke(app, [flag, "anna"])
        assert result.exit_code == 0, result.output
    assert [flags["nickname"] for flags in heard] == ["anna", "anna"]
    assert PeerConfig.load(heard[0]).chosen.nickname == "anna"
