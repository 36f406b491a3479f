from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from peer.settings.config import PeerConfig
from peer.settings.flags import JoinFlags, PlaceFlags, taking


def _heard(*arguments: str) -> list[object]:
    heard: list[object] = []
    app = typer.Typer()

    @app.command()
    @taking(PlaceFlags)
    def look(words: list[str], *, flags: PlaceFlags, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        """Look around."""
        heard.extend((words, flags, loud))

    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == (0 if heard else 2)
    return heard


def test_a_command_hears_the_flags_that_were_given_and_none_of_the_others() -> None:
    given = _heard("a", "b", "--state-dir", "here", "--listen-port", "7", "--no-listen", "--loud")
    assert given == [["a", "b"], PlaceFlags(state_dir=Path("here"), listen_port=7, no_listen=True), True]
    assert _heard("a") == [["a"], PlaceFlags(), False]
    assert set(PlaceFlags().values().values()) == {None}


@pytest.mark.parametrize(
    "arguments", [["a", "--listen-port", "many"], ["a", "--num-threads", "1"], ["a", "--flags", "x"]]
)
def test_a_flag_of_another_kind_or_command_is_refused(arguments: list[str]) -> None:
    assert _heard(*arguments) == []


@pytest.mark.parametrize("kind", [PlaceFlags, JoinFlags])
def test_every_flag_is_a_setting(kind: type[PlaceFlags]) -> None:
    assert {field.name for field in fields(kind)} <= set(PeerConfig.model_fields)


def test_every_flag_says_what_holds_without_it() -> None:
    for name, kind in get_type_hints(JoinFlags, include_extras=True).items():
        default = PeerConfig.model_fields[name].default
        if isinstance(default, bool) or name in ("state_dir", "announce_host"):
            continue
        says = "if not given" if default in (None, "") else f"{default}".removesuffix(".0") + ", the default"
        assert says in kind.__metadata__[0].help, name
