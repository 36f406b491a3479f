from __future__ import annotations

import pytest
import typer

import potluck
from averaging.host.command_errors import report
from averaging.host.hints import OF_BOTH, OF_HOSTS, OF_NEITHER, OF_PEERS, with_folder
from protocol.errors import ConfigError

JOIN = ["join", "--state-dir", "/srv/a b"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see it:  potluck status, potluck logs -f", "see it:  potluck status {}, potluck logs {} -f"),
        ("`potluck doctor` says how", "`potluck doctor {}` says how"),
        ("potluck stop ends it", "potluck stop {} ends it"),
        ("or get one with: potluck checkpoint fetch", "or get one with: potluck checkpoint fetch {}"),
        ("potluck checkpoint export latest OUT_DIR", "potluck checkpoint export {} latest OUT_DIR"),
        ("potluck join --run a --state-dir /x", "potluck join --run a --state-dir /x"),
        ("a running `potluck host`", "a running `potluck host`"),
        ("see: potluck generate --help", "see: potluck generate --help"),
        ("potluck statuses, potluck, no command", "potluck statuses, potluck, no command"),
        ("see: potluck runs", "see: potluck runs {}"),
        ("potluck runs forget our-run", "potluck runs forget {} our-run"),
    ],
)
def test_commands_in_a_peers_hint_name_the_folder_that_was_given(text: str, shown: str) -> None:
    assert with_folder(text, JOIN) == shown.replace("{}", "--state-dir '/srv/a b'")
    assert with_folder(text, ["join"]) == text


def test_a_hosts_hint_names_its_folder_and_leaves_the_volunteers_command_alone() -> None:
    text = "potluck join potluck1:abc; more: potluck invite --uses 20"
    assert (
        with_folder(text, ["host", "run.toml", "--state-dir=/h"])
        == "potluck join potluck1:abc; more: potluck invite --state-dir /h --uses 20"
    )


def test_a_failed_command_tells_a_remedy_for_the_folder_that_was_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["potluck", "generate", "latest", "--state-dir", "/p"])
    report(ConfigError("no checkpoint in /p", "a folder", "get one with: potluck checkpoint fetch"))
    assert "get one with: potluck checkpoint fetch --state-dir /p" in capsys.readouterr().err


def test_the_list_has_each_command_that_takes_a_state_folder() -> None:
    found = set()
    commands = [("", typer.main.get_command(potluck.app))]
    while commands:
        name, command = commands.pop()
        below = getattr(command, "commands", {})
        commands += [(f"{name} {word}".strip(), each) for word, each in below.items()]
        context = typer.Context(command)
        if any("--state-dir" in each.opts for each in command.get_params(context)):
            found.add(name)
    assert found == {*OF_HOSTS, *OF_PEERS, *OF_BOTH, *OF_NEITHER}


def test_a_folder_longer_than_a_line_is_not_repeated() -> None:
    text = "see: potluck doctor"
    assert with_folder(text, ["join", "--state-dir", "x" * 5000]) == text
