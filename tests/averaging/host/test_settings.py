from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from averaging.host.settings import (
    DaemonSettings,
    HostName,
    check_variables,
    descriptions,
    settings_with_origins,
    sources_of,
)
from protocol.errors import ConfigError

NAMES = TypeAdapter(HostName)
SETTINGS = ("slowdown", "max_memory_gb", "http_port")


class Settings(DaemonSettings):
    model_config = sources_of("tried")

    a_port: int = 1
    """A port; 0 for any."""

    b_port: int = 1
    c_port: int = 1
    d_port: int = 1


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tried.toml"
    monkeypatch.setattr(Settings, "file", staticmethod(lambda: path))
    return path


def test_sources_are_named_after_the_daemon() -> None:
    class Own(DaemonSettings):
        model_config = sources_of("peer")

    file = Own.file()
    assert file is not None
    assert file.parts[-2:] == ("potluck", "peer.toml")
    assert Own.model_config["env_prefix"] == "POTLUCK_PEER_"


@pytest.mark.parametrize("variable", ["POTLUCK_TRIED_{}", "potluck_tried_{}"], ids=["capitals", "small"])
def test_flag_goes_before_variable_before_file_before_default(
    file: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    file.write_text("a_port = 4\nb_port = 4\nc_port = 4\n", encoding="utf8")
    for name in ("A_PORT", "B_PORT"):
        monkeypatch.setenv(variable.format(name), "3")
    flags = {"a_port": 2, "b_port": None}
    reported = settings_with_origins(Settings.load(flags), flags)
    assert [(s.name, s.value, s.origin) for s in reported] == [
        ("a_port", 2, "flag --a-port"),
        ("b_port", 3, "variable POTLUCK_TRIED_B_PORT"),
        ("c_port", 4, f"file {file}"),
        ("d_port", 1, "default"),
    ]


def test_file_may_begin_with_the_byte_order_mark_of_an_editor(file: Path) -> None:
    file.write_text("a_port = 4\n", encoding="utf-8-sig")
    assert Settings.load({}).a_port == 4
    assert settings_with_origins(Settings.load({}), {})[0].origin == f"file {file}"


def test_without_a_file_all_is_default() -> None:
    assert {setting.origin for setting in settings_with_origins(Settings.load({}), {})} == {"default"}


@pytest.mark.parametrize(
    ("flags", "ways"), [({"a_port": "x"}, "--a-port, POTLUCK_TRIED_A_PORT"), ({}, "POTLUCK_TRIED_A")]
)
def test_value_that_cannot_work_names_the_flag_only_where_the_command_has_it(
    flags: dict[str, object], ways: str, file: Path
) -> None:
    file.write_text('a_port = "x"\n', encoding="utf8")
    with pytest.raises(ConfigError) as caught:
        Settings.load(flags)
    assert caught.value.found == "tried setting a_port is 'x'"
    assert caught.value.remedy.startswith(f"set it with {ways}")
    assert str(file) in caught.value.remedy


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


@pytest.mark.parametrize(
    "text", ["", "198.51.100.7", "host.example.org", "my_box-2", "2001:db8::7", "::1", ".".join(["a" * 49] * 5)]
)
def test_an_address_or_a_name_alone_is_taken_as_it_is(text: str) -> None:
    assert NAMES.validate_python(text) == text


@pytest.mark.parametrize(
    "text",
    ["http://host.example.org", "host.example.org:7600", "[::1]", "a b", "host/x", "h\n", "höst.example", "a" * 254],
)
def test_whatever_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ValidationError, match=r"an address or a name alone, as 198\.51\.100\.7 or host\.example\.org"):
        NAMES.validate_python(text)


def test_descriptions_are_the_docstrings_below_the_fields_of_a_model_and_of_what_it_inherits() -> None:
    class More(Settings):
        e_port: int = 1
        """Another
        port."""

    assert descriptions(More) == {"a_port": "A port; 0 for any.", "e_port": "Another port."}
