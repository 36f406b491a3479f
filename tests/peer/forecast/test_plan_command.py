from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from typer.testing import CliRunner

from peer.forecast.plan_command import add_plan_command
from protocol.errors import ConfigError, PotluckError, UsageError


def _run(*words: str) -> str:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_plan_command(app)
    result = CliRunner().invoke(app, ["plan", *words], catch_exceptions=True)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_the_command_prints_a_plan_and_writes_its_picture(tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    output = _run("--values", "350M", "--peers", "2xrtx4090", "--grid", "fr", "--svg", str(file))
    assert "kg of CO2 at 44 g a kWh" in output
    assert file.read_text().startswith("<svg")


def test_picture_on_standard_output_is_alone_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("--values", "350M", "--peers", "2xrtx4090")
    output = _run(*given, "--svg", "-")
    ElementTree.fromstring(output)
    _run(*given, "--svg", "plan.svg")
    assert output == Path("plan.svg").read_text(encoding="utf8")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.svg"]


def test_json_and_picture_are_not_both_printed() -> None:
    with pytest.raises(UsageError, match="name a file with --svg"):
        _run("--values", "350M", "--peers", "2xrtx4090", "--svg", "-", "--json")


def test_help_groups_the_options_by_what_they_are_about() -> None:
    panels = [line.strip("╭─╮ ") for line in _run("--help").splitlines() if line.startswith("╭")]
    assert panels == [
        "Arguments",
        "Options",
        "The model and its rounds",
        "The end",
        "Peers and their links",
        "Energy and cost",
        "Output",
    ]


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


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("--values", "1B", "--peers", "4xrtx3091"),
            "no card 'rtx3091' is known; .*; the nearest are rtx3090, rtx3090ti, ",
        ),
        (("--values", "1B", "--peers", "0xrtx3090"), "nobody trains; expected one peer or more"),
        (("--values", "1B"), "no peers to plan for; expected peers such as"),
        (("--values", "400B", "--peers", "8xrtx3060"), "no peer can train .*; expected a model that fits some card"),
        (
            ("--loss", "1.7", "--peers", "4xrtx3090"),
            "--loss 1.7: these peers reach it with no model that fits them; expected a higher",
        ),
        (("--days", "1e-6", "--peers", "1xrtx3060"), "--days 1e-06: these peers finish no step of any model in it"),
        (
            ("--values", "1B", "--days", "1e-9", "--peers", "1xrtx3060"),
            "--days 1e-09: these peers train 0 tokens in it",
        ),
        (("--values", "1B", "--days", "0", "--peers", "2xh100"), "--days 0; expected more than 0"),
        (("--values", "1B", "--peers", "2xh100", "--hours=-2"), "--hours -2; expected 0.001 to 24"),
        (("--values", "1B", "--peers", "2xh100", "--price-kwh", "nan"), "--price-kwh nan; expected 0 to "),
        (("--values", "1B", "--peers", "2xh100", "--churn", "1001"), "--churn 1001; expected 0 to 1000"),
        (
            ("--values", "1B", "--peers", "2xh100", "--churn", "900"),
            "--churn 900: each time costs .* s; expected peers that stay",
        ),
        (("--values", "1B", "--peers", "2xh100", "--link", "0/0"), "link '0/0'; expected 0.001 to 1,000,000 Mbit/s"),
        (
            ("--values", "1B", "--peers", "2xh100", "--link", "1Gbit/s"),
            "link '1Gbit/s'; expected .*, without a unit; such as 100/20",
        ),
        (("--values", "1B", "--peers", "1x1e308tok/s"), "'1e308' tokens/s; expected a number from 0.001 to "),
    ],
)
def test_a_question_that_cannot_be_answered_says_what_would_work(words: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        _run(*words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[run", b"\xd5\x00", b"[run]\nname = 3\n"])
def test_a_run_file_with_a_mistake_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.toml.*; expected "):
        _run(str(file), "--peers", "2xh100")
