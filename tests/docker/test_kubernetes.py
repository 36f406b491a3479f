"""The Kubernetes folders: each document against the published schema, and what every pod keeps to."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer

import potluck
from peer.settings.exit_codes import EXIT_CODES
from tests.docker.kubernetes import FOLDER, OVERLAYS, containers, merged, pod_spec, rendered
from tests.docker.test_containers import settings, variables

FOLDERS = ("base", *OVERLAYS)
SCHEMA = "1.37"
NO_RESTART_MENDS = {2, 3, 6, 7}
WITHIN_S = 60.0
JOIN = typer.main.get_command(potluck.app).commands["join"]  # type: ignore[attr-defined]
PATHS = {"/healthz", "/readyz", "/metrics"}


def workload(folder: str) -> Any:
    (found,) = [document for document in rendered(folder) if pod_spec(document)]
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_document_is_as_kubernetes_says(folder: str) -> None:
    kinds = set()
    for document in rendered(folder):
        kinds.add(document["kind"])
        if document["kind"] != "PodMonitor":  # of the Prometheus operator, not of Kubernetes
            kubernetes_validate.validate(document, SCHEMA, strict=True)
    assert kinds & {"StatefulSet", "DaemonSet", "Job"}


def test_a_field_that_kubernetes_does_not_know_is_noticed() -> None:
    document = workload("overlays/spot")
    document["spec"]["template"]["spec"]["containers"][0]["grace"] = 25
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, SCHEMA, strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_variable_is_a_setting(folder: str) -> None:
    found = {row["name"] for container in containers(workload(folder)) for row in container.get("env", [])}
    assert found
    assert found - settings() == set()
    texts = [path.read_text(encoding="utf8") for path in FOLDER.rglob("*.yaml")]
    assert {name for text in texts for name in variables(text)} - settings() == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_daemon_is_nobody_and_writes_to_its_volumes_alone(folder: str) -> None:
    spec = pod_spec(workload(folder))
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["runAsNonRoot"]) == (10001, True)
    (daemon,) = spec["containers"]
    assert daemon["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert {mount["name"] for mount in daemon["volumeMounts"]} <= {
        *(volume["name"] for volume in spec["volumes"]),
        *(claim["metadata"]["name"] for claim in workload(folder)["spec"].get("volumeClaimTemplates", [])),
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_probes_ask_the_daemon_over_http_where_it_answers(folder: str) -> None:
    (daemon,) = pod_spec(workload(folder))["containers"]
    ports = {port["name"]: port["containerPort"] for port in daemon["ports"]}
    assert ports["http"] == 7620
    probes = [daemon[name] for name in ("startupProbe", "livenessProbe", "readinessProbe") if name in daemon]
    assert len(probes) >= 2
    assert all(probe["httpGet"]["path"] in PATHS and probe["httpGet"]["port"] == "http" for probe in probes)


@pytest.mark.parametrize("folder", OVERLAYS)
def test_a_peer_has_one_card_its_invite_as_a_file_and_time_for_a_goodbye(folder: str) -> None:
    spec = pod_spec(workload(folder))
    (daemon,) = spec["containers"]
    assert daemon["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert spec["terminationGracePeriodSeconds"] == 25
    assert [volume["secret"]["secretName"] for volume in spec["volumes"] if volume["name"] == "invite"] == ["invite"]
    assert not any("INVITE" in row["name"] for row in daemon["env"])
    assert daemon["command"] == ["tini", "--", "sh", "-c"], "signals reach the script"
    assert [row["valueFrom"]["fieldRef"]["fieldPath"] for row in daemon["env"] if "valueFrom" in row] == [
        "status.podIP"
    ]


POTLUCK = """#!/bin/sh
echo "$@" > "$SAID"; cat >> "$SAID"
trap 'sleep 0.3; echo goodbye >> "$SAID"; exit 0' TERM
echo begun
[ -z "$EXIT" ] || exit "$EXIT"
while true; do sleep 0.05; done
"""


@contextmanager
def _started(folder: Path, code: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The script of a pod with a `potluck` that notes its words and its input, and ends with this code or when it is told to."""
    (script,) = pod_spec(workload("overlays/spot"))["containers"][0]["args"]
    (folder / "potluck").write_text(POTLUCK)
    (folder / "potluck").chmod(0o755)
    (folder / "invite").write_text("potluck1:secret\n")
    said = folder / "said"
    told = {"PATH": f"{folder}:{os.environ['PATH']}", "TMPDIR": str(folder / "tmp"), "SAID": str(said), "EXIT": code}
    line = ["sh", "-c", script.replace("/invite/invite", str(folder / "invite"))]
    with subprocess.Popen(line, env=told, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"begun\n"
            yield process, said
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("code", [0, 6, 75])
def test_a_pod_ends_as_its_peer_does_and_the_invite_is_no_word_of_its_command(tmp_path: Path, code: int) -> None:
    with _started(tmp_path, str(code)) as (process, said):
        assert process.wait(WITHIN_S) == code
    words, given = said.read_text().splitlines()
    JOIN.make_context("join", shlex.split(words)[1:])
    assert words == "join - --over-is-fine"
    assert given == "potluck1:secret"


def test_a_pod_that_is_taken_away_waits_for_the_goodbye_and_is_not_done(tmp_path: Path) -> None:
    with _started(tmp_path, "") as (process, said):
        process.terminate()
        assert process.wait(WITHIN_S) == 75, "a Job counts a 0 as a peer whose run is over"
        assert said.read_text().endswith("goodbye\n")
    assert 75 not in NO_RESTART_MENDS


def test_a_spot_job_gives_up_where_no_restart_helps_and_nowhere_else() -> None:
    rules = workload("overlays/spot")["spec"]["podFailurePolicy"]["rules"]
    (codes,) = [set(rule["onExitCodes"]["values"]) for rule in rules if rule["action"] == "FailJob"]
    assert codes == NO_RESTART_MENDS
    assert codes <= set(EXIT_CODES)


def test_what_prometheus_scrapes_are_host_and_peers_at_their_pages() -> None:
    (monitor,) = [document for document in rendered("base") if document["kind"] == "PodMonitor"]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    namespaces = monitor["spec"]["namespaceSelector"]["matchNames"]
    for folder in FOLDERS:
        assert workload(folder)["metadata"]["namespace"] in namespaces
        assert wanted.items() <= workload(folder)["spec"]["template"]["metadata"]["labels"].items()
    assert [(row["port"], row["path"]) for row in monitor["spec"]["podMetricsEndpoints"]] == [("http", "/metrics")]


def test_merging_takes_named_things_by_name() -> None:
    old = {"spec": {"a": [{"name": "x", "v": 1}, {"name": "y"}], "b": [1]}}
    new = {"spec": {"a": [{"name": "z"}, {"name": "x", "v": 2}], "b": [2]}}
    assert merged(old, new) == {"spec": {"a": [{"name": "z"}, {"name": "x", "v": 2}, {"name": "y"}], "b": [2]}}
