"""The images: each target of docker/Dockerfile built by buildah, and a host and a peer in containers for a round.

composed.py shows the rest: ports, limits, networks. The base is a stand-in of the same Debian, made by debootstrap,
because a registry of images may be out of reach.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.install.buildah import CERTIFICATES, Buildah, base_of, make_base
from tests.install.composed import try_compose
from tests.install.one_round import PEER_IS_DONE, one_host, write_run_of_one_round
from tests.install.running import ROOT, Failed, Sources, say

TARGETS: Final = ("coordinator", "peer-cpu", "peer-gpu")
RUNNABLE: Final = ("coordinator", "peer-cpu")
SUITE: Final = "bookworm"
UID: Final = 10001
ABSENT: Final = ("gcc", "cc", "make", "git", "curl", "wget", "pip")
"""Programs that no image may have on its PATH, but for the compiler of a peer with a card."""

_COMPILES: Final = """
import ctypes, os, pathlib, subprocess, sysconfig, tempfile
source = pathlib.Path(tempfile.mkdtemp()) / "kernel.c"
source.write_text("#include <Python.h>\\nint seven(void) { return 7; }")
cached = pathlib.Path(os.environ["TRITON_CACHE_DIR"]) / "kernel.so"
cached.parent.mkdir(parents=True, exist_ok=True)
include = sysconfig.get_path("include")
subprocess.run([os.environ["CC"], "-shared", "-fPIC", f"-I{include}", source, "-o", cached], check=True)
print(source.parent.parent, ctypes.CDLL(cached).seven())
"""
"""Does what Triton does for a kernel: C that includes Python.h is compiled, kept and loaded."""

NOT_TRIED: Final = (
    "docker itself, and the images of Prometheus and Grafana",
    "python:3.11-slim-bookworm itself: a stand-in by debootstrap is the base",
    "a card in a container",
)


def try_images(folder: Path, targets: Sequence[str], sources: Sources) -> list[str]:
    """Build the targets, look into each, and run a round where host and peer are there. Returns what failed."""
    buildah, problems = Buildah(folder), []
    make_base(buildah, folder, SUITE)
    for target in targets:
        say(f"== {target}")
        try:
            buildah(*build_words(target, folder, sources), log=folder / f"build-{target}.log")
            problems += [f"{target}: {problem}" for problem in _looked_into(buildah, target)]
        except Failed as error:
            problems.append(f"{target}: {error}")
    if set(RUNNABLE) <= set(targets) and not problems:
        say("== a host and a peer in containers")
        try:
            problems += _round_in_containers(buildah, folder / "round")
        except Failed as error:
            problems.append(f"a round in containers: {error}")
    if set(RUNNABLE) <= set(targets) and not problems:
        problems += try_compose(folder / "compose", folder, f"localhost/potluck:{RUNNABLE[0]}")
    say(*(f"NOT TRIED: {what}" for what in NOT_TRIED))
    return problems


def build_words(target: str, folder: Path, sources: Sources) -> list[str]:
    """The command `build` for a target. Packages come as this machine's pip has them; folders of wheels are mounted for the build. A
    peer with a card takes the registry's torch, which has CUDA.
    """
    wheels = () if target == "peer-gpu" else sources.find_links
    pipconf = folder / f"{target}-pip.conf"
    folders = "".join(f"\n    {path}" for path in wheels)
    pipconf.write_text(
        f"[global]\ncert = {CERTIFICATES}\n" + (f"find-links ={folders}\n" if folders else ""), encoding="utf8"
    )
    words = ["build", "--layers", "--build-arg", f"BASE={base_of(SUITE)}", "--secret", f"id=pipconf,src={pipconf}"]
    words += ["--build-arg", "TORCH_INDEX="] if wheels else []
    words += [word for path in wheels for word in ("--volume", f"{path}:{path}:ro")]
    return [
        *words,
        "--file",
        str(ROOT / "docker/Dockerfile"),
        "--target",
        target,
        "--tag",
        f"potluck:{target}",
        str(ROOT),
    ]


def _looked_into(buildah: Buildah, target: str) -> Iterator[str]:
    container = buildah.start(f"localhost/potluck:{target}")
    try:
        absent = [name for name in ABSENT if target != "peer-gpu" or name not in ("gcc", "cc")]
        asked = "; ".join(f"command -v {name}" for name in absent)
        found = buildah("run", container, "--", "sh", "-c", f"{asked}; true").split()
        strange = [path for path in found if not path.startswith("/opt/potluck/")]
        if strange:
            yield f"{', '.join(strange)} is in the image"
        said = buildah("run", container, "--", "sh", "-c", "id -u; potluck --version; cat /etc/pip.conf 2>&1 || true")
        if said.split()[:2] != [str(UID), "potluck"] or "find-links" in said:
            yield f"the container says: {said}"
        codecs = "from averaging.codecs.compiled import problem; print(problem() or 'compiled')"
        said = buildah("run", container, "--", "python", "-c", codecs)
        if said.strip() != "compiled":
            yield f"codecs: {said.strip()}"
        if target == "peer-gpu":
            said = buildah("run", container, "--", "python", "-c", _COMPILES)
            if said.split() != ["/state/tmp", "7"]:
                yield f"the compiler: {said.strip()}"
        say(
            f"  {target} runs as {UID}, with compiled codecs and none of {', '.join(absent)} beside the environment's own"
        )
    finally:
        buildah("rm", container)


def _round_in_containers(buildah: Buildah, folder: Path) -> Iterator[str]:
    """As compose.yml has it: run.toml and corpus/ mounted into the host, the invite as a file into the peer, tini before both."""
    shutil.rmtree(folder, ignore_errors=True)
    write_run_of_one_round(folder, "parquet")
    for path in (folder, folder / "corpus"):
        path.chmod(0o755)
    host, peer = (buildah.start(f"localhost/potluck:{target}") for target in RUNNABLE)
    mounts = ["--volume", f"{folder / 'run.toml'}:/run.toml:ro", "--volume", f"{folder / 'corpus'}:/corpus:ro"]
    try:
        with_pid = "echo pid $$; exec tini -- potluck host /run.toml"
        hosting = buildah.words("run", *mounts, host, "--", "sh", "-c", with_pid)
        with one_host(hosting, folder, os.environ, says_pid=True) as invite:
            (folder / "invite.txt").write_text(f"{invite}\n", encoding="ascii")
            joining = 'exec potluck join "$(cat /run/secrets/invite)"'
            secret = ["--volume", f"{folder / 'invite.txt'}:/run/secrets/invite:ro"]
            # both share this machine's ports
            ports = ["--env", "POTLUCK_PEER_LISTEN_PORT=7630", "--env", "POTLUCK_PEER_HTTP_PORT=7640"]
            said = buildah(
                "run", *secret, *ports, peer, "--", "tini", "--", "sh", "-c", joining, log=folder / "peer.log"
            )
        if PEER_IS_DONE not in said:
            yield f"the peer ended before its run did: {said[-500:]}"
        say("  a peer joined the host, which read parquet files below /corpus, and trained its run to the end")
    finally:
        buildah("rm", host, peer)
