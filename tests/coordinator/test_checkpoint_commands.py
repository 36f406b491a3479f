"""The options of `potluck checkpoint export` for a run with an adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from coordinator.checkpoint_commands import add_checkpoint_commands
from protocol.errors import ConfigError
from tests.coordinator.checkpoints.adapter_checkpoint import checkpoint_of_adapter
from tests.coordinator.checkpoints.test_checkpoints import decoder
from tests.coordinator.run.test_named_checkpoint import Models


def _run(folder: Path, *arguments: str) -> BaseException | None:
    app = typer.Typer()
    add_checkpoint_commands(app, lambda: Models(folder))
    return CliRunner().invoke(app, arguments).exception


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--adapter", "--merged"], "--adapter and --merged; expected one of both"),
        (["--adapter", "--expert", "1"], "--expert with --adapter or --merged"),
        (["--adapter", "--base", "data"], "--base without --merged"),
    ],
)
def test_options_that_contradict_each_other_are_refused(tmp_path: Path, options: list[str], line: str) -> None:
    error = _run(tmp_path, "export", str(tmp_path), str(tmp_path / "out"), *options)
    assert isinstance(error, ConfigError)
    assert line in error.one_line()


@pytest.mark.parametrize(("option", "file"), [("--adapter", "adapter_config.json"), ("--merged", "config.json")])
def test_both_forms_are_written(tmp_path: Path, option: str, file: str) -> None:
    checkpoint = checkpoint_of_adapter(tmp_path, decoder())
    assert _run(tmp_path, "export", str(checkpoint), str(tmp_path / "out"), option) is None
    assert (tmp_path / "out" / file).exists()
