from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from peer.forecast.plan_command import add_plan_command
from protocol.errors import PotluckError


def _run(*words: str) -> str:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_plan_command(app)
    result = CliRunner().invoke(app, ["plan", *words], catch_exceptions=True)
    if result.exception is not None:
        raise result.exception
    return result.output


def test_the_command_prints_a_plan_and_writes_its_picture(tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    output = _run("--values", "350M", "--peers", "2xrtx4090", "--grid", "fr", "--svg", str(file))
    assert "kg of CO2 at 44 g a kWh" in output
    assert file.read_text().startswith("<svg")


def test_json_is_one_document() -> None:
    found = json.loads(_run("--days", "2", "--peers", "2xrtx4090", "--json"))
    assert found["best"][0]["loss"]["nats"] == found["plan"]["loss"]["nats"]


@pytest.mark.parametrize(
    "words",
    [
        ("--values", "lots", "--peers", "2xh100"),
        ("--values", "nan", "--peers", "2xh100"),
        ("--values", "1B", "--tokens", "0", "--peers", "2xh100"),
        ("--values", "1B", "--peers", "2xh100", "--hours", "25"),
        ("--values", "1B", "--peers", "2xh100", "--hours", "nan"),
        ("--values", "1B", "--peers", "2xh100", "--mfu", "0"),
        ("--values", "1B", "--peers", "2xh100", "--churn", "-1"),
        ("--values", "1B", "--peers", "2xh100", "--price-kwh", "-1"),
        ("--values", "1B", "--peers", "2xh100", "--grid", "atlantis"),
        ("--values", "1B", "--peers", "2xh100", "--link", "fast"),
        ("--values", "1B", "--peers", "2xh100", "--codec", "zip"),
        ("--values", "1B", "--peers", "2xh100", "--svg", "/no/such/folder/plan.svg"),
    ],
)
def test_values_that_cannot_work_are_one_line(words: tuple[str, ...]) -> None:
    with pytest.raises(PotluckError) as caught:
        _run(*words)
    assert "\n" not in str(caught.value)
