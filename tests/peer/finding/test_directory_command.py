"""`potluck directory` as its user gives it."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from peer.finding.directory_command import add_directory_command, ways_of
from protocol.errors import ConfigError


def test_a_node_listens_on_one_port_and_announces_the_name_that_its_owner_gives() -> None:
    assert ways_of("0.0.0.0", 4700, "") == (("/ip4/0.0.0.0/tcp/4700",), ())
    assert ways_of("0.0.0.0", 4700, "runs.example.org")[1] == ("/dns/runs.example.org/tcp/4700",)


@pytest.mark.parametrize(
    ("listen", "port", "announce"),
    [("0.0.0.0", 0, "runs.example.org"), ("0.0.0.0", 4700, "0.0.0.0"), ("224.0.0.1", 4700, ""), ("a b", 4700, "")],
)
def test_an_address_that_cannot_work_is_refused(listen: str, port: int, announce: str) -> None:
    with pytest.raises(ConfigError):
        ways_of(listen, port, announce)


def test_peers_that_are_no_nodes_are_refused_before_a_key_is_made() -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    add_directory_command(app, "For hosts")
    result = CliRunner().invoke(app, ["directory", "--peers", "http://runs.example.org"])
    assert isinstance(result.exception, ConfigError)
    assert "--peers names no nodes" in str(result.exception)
