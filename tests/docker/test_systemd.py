"""The unit files: what they allow, how they stop, and after which exit codes they stay down."""

from __future__ import annotations

import pytest

from peer.settings.exit_codes import EXIT_CODES
from tests.docker.assets import DOCKER

UNITS = ("potluck-peer", "potluck-host")
STAY_DOWN = {2, 3, 6, 7, 8}
HARDENED = {
    "DynamicUser": "yes",
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "RestrictNamespaces": "yes",
    "SystemCallFilter": "@system-service",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
}


def options(unit: str) -> dict[str, list[str]]:
    """Every option of a unit with its values."""
    found: dict[str, list[str]] = {}
    for line in (DOCKER / f"systemd/{unit}.service").read_text(encoding="utf8").splitlines():
        if line and line[0] not in "#[":
            key, equals, value = line.partition("=")
            assert equals, line
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("unit", UNITS)
def test_unit_may_do_little(unit: str) -> None:
    found = options(unit)
    assert {key: found[key] for key in HARDENED} == {key: [value] for key, value in HARDENED.items()}
    assert found["StateDirectory"] == [unit]
    assert f"_STATE_DIR=%S/{unit} " in found["Environment"][0]


@pytest.mark.parametrize("unit", UNITS)
def test_stop_is_a_goodbye_of_the_daemon_alone(unit: str) -> None:
    found = options(unit)
    assert (found["KillMode"], found["KillSignal"]) == (["mixed"], ["SIGTERM"])
    assert int(found["TimeoutStopSec"][0]) >= 60


@pytest.mark.parametrize("unit", UNITS)
def test_what_no_restart_mends_is_not_restarted(unit: str) -> None:
    found = options(unit)
    assert found["Restart"] == ["on-failure"]
    codes = {int(code) for code in found["RestartPreventExitStatus"][0].split()}
    assert codes == STAY_DOWN
    assert codes <= set(EXIT_CODES)


@pytest.mark.parametrize("unit", UNITS)
def test_start_is_done_when_the_program_runs_and_never_waits_for_others(unit: str) -> None:
    found = options(unit)
    assert found["Type"] == ["exec"]
    assert "TimeoutStartSec" not in found


def test_peer_gives_way_to_its_owner() -> None:
    found = options("potluck-peer")
    assert int(found["Nice"][0]) > 0
    assert found["IOSchedulingClass"] == ["idle"]


def test_invite_comes_as_a_credential() -> None:
    found = options("potluck-peer")
    assert found["LoadCredential"] == ["invite:/etc/potluck/invite"]
    assert "CREDENTIALS_DIRECTORY" in found["ExecStart"][0]
    assert not any("INVITE" in value for value in found["Environment"])
