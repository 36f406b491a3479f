"""The files for SLURM, SkyPilot and Ray: each parses, and starts `potluck join` with flags that it has."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess

import typer

import potluck
from tests.docker.assets import DOCKER, yaml_of

FOLDER = DOCKER / "clusters"
JOIN = typer.main.get_command(potluck.app).commands["join"]  # type: ignore[attr-defined]


def _understood(line: str) -> None:
    words = shlex.split(line)
    assert words[:3] == ["potluck", "join", "-"], "the invite goes by standard input, not by the process list"
    assert "--over-is-fine" in words, "the end of the run is no failure to repeat"
    JOIN.make_context("join", words[2:])


def test_slurm_script_is_a_shell_script_whose_job_ends_with_a_signal_to_the_peer() -> None:
    path = FOLDER / "slurm.sh"
    subprocess.run(["sh", "-n", str(path)], check=True)
    text = path.read_text(encoding="utf8")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.MULTILINE))
    assert options["signal"] == "TERM@60", "without B:, so that the step gets it"
    assert options["gres"] == "gpu:1"
    assert "requeue" in options
    (line,) = re.findall(r"^srun (potluck [^<]*) <", text, re.MULTILINE)
    _understood(line)


def test_skypilot_task_takes_a_spot_card_and_the_invite_as_a_secret() -> None:
    task = yaml_of("clusters/skypilot.yaml")
    assert set(task) == {"name", "resources", "secrets", "run"}
    assert task["resources"]["use_spot"] is True
    assert set(task["resources"]["accelerators"].values()) == {1}
    assert task["secrets"] == {"POTLUCK_INVITE": None}
    assert "image_id" not in task["resources"], "SkyPilot would install its own things into an image whose user may not"
    words = shlex.split(task["run"])
    options, line = words[words.index("docker") : words.index("join")], words[words.index("join") :]
    assert options[:4] == ["docker", "run", "--rm", "-i"], "the invite goes in by standard input"
    assert options[-1].endswith("potluck:peer-gpu")
    assert task["resources"]["ports"] == [7610, 7611]
    _understood(shlex.join(["potluck", *line]))


def test_ray_script_starts_a_peer_on_each_card_with_a_folder_of_its_own() -> None:
    tree = ast.parse((FOLDER / "ray_peers.py").read_text(encoding="utf8"))
    (command,) = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "command"
    ]
    assert isinstance(command, ast.List)
    _understood(" ".join(part.value if isinstance(part, ast.Constant) else "FOLDER" for part in command.elts))
