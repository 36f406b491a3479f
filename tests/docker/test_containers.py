"""The image and the compose file, as text; they were built and run as docker/README.md says."""

from __future__ import annotations

import re

import pytest

from coordinator.policy.config import HostConfig
from peer.settings.config import PeerConfig
from protocol.run.manifest import default_run_toml
from tests.docker.assets import DOCKER, ROOT, services, stages, yaml_of

TARGETS = ("peer-cpu", "peer-gpu", "coordinator")
NOT_A_SETTING = {"POTLUCK_LOG"}  # read by averaging/host/stderr_log.py
SECRET = re.compile(r"(?i)secret|passw|token|invite=|potluck1:|private|api_?key")


def settings() -> set[str]:
    peer = {f"POTLUCK_PEER_{name.upper()}" for name in PeerConfig.model_fields}
    return peer | {f"POTLUCK_HOST_{name.upper()}" for name in HostConfig.model_fields} | NOT_A_SETTING


def variables(text: str) -> set[str]:
    return set(re.findall(r"POTLUCK_[A-Z0-9_]+", text))


@pytest.mark.parametrize("file", ["Dockerfile", "host.env.example", "peer.env.example"])
def test_every_variable_is_a_setting(file: str) -> None:
    found = variables((DOCKER / file).read_text(encoding="utf8"))
    assert found
    assert found - settings() == set()


@pytest.mark.parametrize("unit", ["potluck-peer", "potluck-host"])
def test_every_variable_of_a_unit_is_a_setting(unit: str) -> None:
    found = variables((DOCKER / f"systemd/{unit}.service").read_text(encoding="utf8"))
    assert found
    assert found - settings() == set()


@pytest.mark.parametrize("room", ["host", "peer"])
def test_example_of_settings_is_accepted_once_its_lines_are_taken_in(
    room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (DOCKER / f"{room}.env.example").read_text(encoding="utf8").splitlines()
    given = [line.removeprefix("#").partition("=") for line in lines if line.startswith("#POTLUCK_")]
    assert all(line.startswith("#") or not line for line in lines)
    for name, _, value in given:
        monkeypatch.setenv(name, value)
    assert (HostConfig() if room == "host" else PeerConfig()).state_dir


@pytest.mark.parametrize("target", TARGETS)
def test_target_runs_as_nobody_else_and_ends_with_a_goodbye(target: str) -> None:
    lines = stages()[target]
    assert [rest for word, rest in lines if word == "USER"][-1] == "10001:10001"
    assert [rest for word, rest in lines if word == "STOPSIGNAL"] == ["SIGTERM"]
    assert [rest for word, rest in lines if word == "VOLUME"] == ["/state"]
    assert [rest for word, rest in lines if word == "ENTRYPOINT"] == ['["tini", "--", "potluck"]']
    (check,) = [rest for word, rest in lines if word == "HEALTHCHECK"]
    assert check.endswith('CMD ["potluck", "health", "--state-dir", "/state"]')


def test_every_base_is_the_argument_or_an_earlier_stage() -> None:
    names = stages()
    assert [rest for word, rest in names[""] if word == "ARG"] == ["BASE=python:3.11-slim-bookworm"]
    for name, lines in names.items():
        for word, rest in lines:
            base = rest.partition(" AS ")[0]
            assert word != "FROM" or base == "${BASE}" or base in names, name


def test_host_finds_the_texts_that_its_run_names() -> None:
    """A path of run.toml is taken from the folder of that file."""
    (example,) = re.findall(r'glob = "(\w+)/', default_run_toml())
    volumes = services()["host"]["volumes"]
    assert "./run.toml:/run.toml:ro" in volumes
    assert f"./{example}:/{example}:ro" in volumes
    assert f"/docker/{example}/" in (ROOT / ".gitignore").read_text(encoding="utf8").splitlines()


def test_host_has_what_parquet_files_and_data_sets_need_and_a_peer_does_not() -> None:
    installed = {name: " ".join(rest for word, rest in lines if word == "RUN") for name, lines in stages().items()}
    for target in TARGETS:
        copied = "\n".join(rest for word, rest in stages()[target] if word == "COPY")
        (source,) = re.findall(r"--from=(\S+)", copied)
        assert ("-r requirements-hf.txt" in installed[source]) == (target == "coordinator"), target
        assert "-r requirements.txt" in installed[source], target


def test_only_a_peer_with_a_card_has_a_compiler_and_compiles_into_the_volume_of_its_state() -> None:
    for target in TARGETS:
        ran = " ".join(rest for word, rest in stages()[target] if word == "RUN")
        assert (" gcc libc6-dev " in ran) == (target == "peer-gpu"), target
    given = " ".join(rest for word, rest in stages()["peer-gpu"] if word == "ENV").split()
    variables = dict(each.split("=", 1) for each in given)
    service = services()["peer-gpu"]
    for name in ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert variables[name].startswith("/state/"), "the root is read-only, and /tmp in memory loads no code"
        assert service["environment"][name] == variables[name]
    lines = stages()["peer-gpu"]
    makes = next(at for at, (word, rest) in enumerate(lines) if word == "RUN" and f" {variables['TMPDIR']}" in rest)
    assert makes < lines.index(("VOLUME", "/state")), "later changes to a volume are in no image"
    assert service["tmpfs"] == ["/tmp"]
    assert "peer-gpu-state:/state" in service["volumes"]


def test_no_secret_is_in_a_layer() -> None:
    for lines in stages().values():
        for word, rest in lines:
            assert word not in ("ENV", "ARG", "COPY", "ADD", "LABEL") or not SECRET.search(rest), rest


def test_only_what_the_wheel_is_made_of_goes_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    sent = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {
        path
        for lines in stages().values()
        for word, rest in lines
        if word == "COPY" and not rest.startswith("--from")
        for path in rest.split()[:-1]
    }
    assert sent == copied
    assert all((ROOT / path).exists() for path in copied)


def test_services_have_a_profile_a_health_check_and_no_rights() -> None:
    for name, service in services().items():
        assert service["profiles"], name
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
    assert {profile for s in services().values() for profile in s["profiles"]} == {
        "host", "peer", "peer-gpu", "monitoring",
    }  # fmt: skip


def test_images_are_built_here_or_pinned_to_a_release() -> None:
    for name, service in services().items():
        tag = service["image"].partition(":")[2]
        if "build" in service:
            assert tag == service["build"]["target"], name
            assert tag in TARGETS
        else:
            assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag), name


def test_daemons_have_time_for_their_goodbye_and_keep_their_state() -> None:
    volumes = yaml_of("compose.yml")["volumes"]
    for name in ("host", "peer", "peer-gpu"):
        service = services()[name]
        assert (service["stop_signal"], service["stop_grace_period"]) == ("SIGTERM", "2m")
        assert f"{name}-state:/state" in service["volumes"]
        assert f"{name}-state" in volumes


def test_nothing_but_the_two_protocols_is_reachable_from_other_machines() -> None:
    for name, service in services().items():
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:") or port.split(":")[-1] in ("7600", "7610", "7611"), name


def test_peer_that_others_can_connect_to_is_forwarded_under_the_ports_that_it_announces() -> None:
    assert all(port.startswith("127.0.0.1:") for port in services()["peer"]["ports"])
    for name, service in yaml_of("compose.reachable.yml")["services"].items():
        given = service["environment"]
        ports = [given["POTLUCK_PEER_LISTEN_PORT"], given["POTLUCK_PEER_BULK_PORT"]]
        assert service["ports"] == [f"{port}:{port}" for port in ports], name
        assert not {port.split(":")[0] for port in service["ports"]} & {
            port.split(":")[0] for port in services()["host"]["ports"]
        }, "a host on the same machine has them"


def test_invite_is_a_file_and_in_no_environment() -> None:
    assert yaml_of("compose.yml")["secrets"] == {"invite": {"file": "./invite.txt"}}
    for service in services().values():
        assert not SECRET.search(str(service.get("environment", "")))
    ignored = (ROOT / ".gitignore").read_text(encoding="utf8").splitlines()
    assert {"/docker/invite.txt", "/docker/*.env", "/docker/run.toml"} <= set(ignored)
