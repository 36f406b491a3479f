from __future__ import annotations

import pytest

from averaging.host.variables import check_variables
from protocol.errors import ConfigError

SETTINGS = ("slowdown", "max_memory_gb", "http_port")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("POTLUCK_PEER_SLOWDWN", "expected POTLUCK_PEER_SLOWDOWN;"),
        ("potluck_peer_max_memory", "expected POTLUCK_PEER_MAX_MEMORY_GB;"),
        ("POTLUCK_PEER_HTTPS_PORT", "expected POTLUCK_PEER_HTTP_PORT;"),
        ("POTLUCK_PEER_", "the name of a setting after POTLUCK_PEER_;"),
        ("POTLUCK_PEER_WALLET", "the name of a setting after POTLUCK_PEER_;"),
    ],
)
def test_variable_that_is_no_setting_is_refused_with_the_one_that_may_be_meant(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"variable {name} is no setting") as caught:
        check_variables("POTLUCK_PEER_", SETTINGS, ["HOME", name])
    assert meant in caught.value.one_line()


@pytest.mark.parametrize(
    "name",
    [
        "POTLUCK_PEER_SLOWDOWN",
        "potluck_peer_slowdown",
        "POTLUCK_HOST_SLOWDWN",
        "POTLUCK_LOG",
        "POTLUCK_PEER_SERVICE_HOST",
        "POTLUCK_PEER_SERVICE_PORT_METRICS",
        "POTLUCK_PEER_PORT",
        "POTLUCK_PEER_PORT_7620_TCP_ADDR",
    ],
)
def test_settings_others_variables_and_those_of_a_service_of_our_name_pass(name: str) -> None:
    check_variables("POTLUCK_PEER_", SETTINGS, [name])
