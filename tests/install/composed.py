"""docker/compose.yml itself, started by podman-compose: a host and a peer on a network of their own, as docker/README.md says.

podman needs no daemon. Root, namespaces and a network bridge are needed; a machine that forbids one of them is told, and nothing else
fails. The images that watch the daemons come from a registry of images and are not started.
"""

from __future__ import annotations

import re
import resource
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from tests.install.one_round import PEER_IS_DONE, write_run_of_one_round
from tests.install.running import ROOT, Failed, run, say, uv

PROJECT: Final = "potluck-check"
RUNTIMES: Final = ("", "crun", "runc")
"""The first one that starts a container is taken; the empty one is podman's own choice."""

START_LIMIT_S: Final = 300.0
ROUND_LIMIT_S: Final = 900.0
STATUS_PAGE: Final = "http://127.0.0.1:7620/"
PORTS: Final = (7600, 7610, 7611)
_INVITE: Final = re.compile(r"potluck1:[A-Za-z0-9+_]+")

_MAY: Final = """
for folder in / /opt/potluck /usr/bin; do touch $folder/written 2>/dev/null && echo "writes to $folder"; done
touch /state/written /tmp/written || echo "writes neither to /state nor to /tmp"
rm -f /state/written /tmp/written
grep -qE '^CapEff:.0+$' /proc/self/status || echo "has capabilities"
grep -qE '^NoNewPrivs:.1$' /proc/self/status || echo "may gain privileges"
"""
"""Says in the container which of compose.yml's limits do not hold."""


class Podman:
    """podman over the storage of buildah below `folder`.

    Raises:
        Failed: it is not here, or starts no container on this machine.
    """

    def __init__(self, folder: Path, image: str) -> None:
        found = shutil.which("podman")
        if found is None:
            raise Failed("podman is not on PATH (Debian: apt-get install podman netavark aardvark-dns runc iptables)")
        self._program = found
        self._storage = [
            "--root",
            str(folder / "images"),
            "--runroot",
            str(folder / "run"),
            "--cgroup-manager",
            "cgroupfs",
        ]
        # podman raises this limit, which not every root may do
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limits = ["--ulimit", f"nofile={most}:{most}", "--ulimit", "nproc=4096:4096"]
        self._storage += self._runtime(image)

    def _runtime(self, image: str) -> list[str]:
        for name in RUNTIMES:
            chosen = ["--runtime", name] if name else []
            try:
                run([self._program, *self._storage, *chosen, "run", "--rm", *self.limits, "--network", "none",
                     "--entrypoint", "true", image])  # fmt: skip
            except Failed as error:
                problem = error
            else:
                return chosen
        raise problem

    @property
    def flags(self) -> list[str]:
        """The words before each command of podman."""
        return self._storage

    def words(self, command: str, *arguments: str | Path) -> list[str]:
        """A command line."""
        return [self._program, *self._storage, command, *map(str, arguments)]

    def __call__(self, command: str, *arguments: str | Path, limit_s: float = START_LIMIT_S) -> str:
        """Run a command. Returns its output."""
        return run(self.words(command, *arguments), limit_s=limit_s)


def try_compose(folder: Path, storage: Path, image: str) -> list[str]:
    """A round of the services `host` and `peer`. Returns what failed; says so if this machine cannot start them.

    Args:
        storage: where buildah keeps the images.
        image: one of them, to try containers with.
    """
    say("== compose.yml")
    try:
        podman = Podman(storage, image)
    except Failed as error:
        say(f"NOT TRIED: compose.yml: {error}")
        return []
    shutil.rmtree(folder, ignore_errors=True)
    docker = folder / "docker"
    write_run_of_one_round(docker, "parquet")
    for path in (folder, docker, docker / "corpus"):
        path.chmod(0o755)
    for name in ("compose.yml", "compose.reachable.yml"):
        shutil.copy(ROOT / "docker" / name, docker)
    for service in ("host", "peer"):
        (docker / f"{service}.env").write_text(f"POTLUCK_{service.upper()}_ANNOUNCE_HOST={service}\n", encoding="ascii")
    compose = _Compose(podman, docker)
    try:
        return list(_round(compose, podman, docker))
    except Failed as error:
        return [f"compose.yml: {error}"]
    finally:
        compose("down", "--volumes", "--timeout", "5")


class _Compose:
    """podman-compose for the files in `docker`; the peer can be connected to."""

    def __init__(self, podman: Podman, docker: Path) -> None:
        files = ["-f", str(docker / "compose.yml"), "-f", str(docker / "compose.reachable.yml")]
        self._words = [uv(), "tool", "run", "--from", "podman-compose", "podman-compose", "-p", PROJECT, *files]
        self._words += [f"--podman-args={' '.join(podman.flags)}", f"--podman-run-args={' '.join(podman.limits)}"]
        self._docker = docker

    def __call__(self, *words: str) -> str:
        """Run a command for both profiles. Returns its output."""
        profiles = ["--profile", "host", "--profile", "peer"]
        return run([*self._words, *profiles, *words], cwd=self._docker, limit_s=START_LIMIT_S)


def _round(compose: _Compose, podman: Podman, docker: Path) -> Iterator[str]:
    host, peer = (f"{PROJECT}_{service}_1" for service in ("host", "peer"))
    (docker / "invite.txt").touch(mode=0o644)
    compose("up", "-d", "--no-build", "host")
    invite = _invite(podman, host)
    yield from (f"{host} {problem}" for problem in podman("exec", host, "sh", "-c", _MAY).splitlines())
    podman("healthcheck", "run", host)
    yield from _closed_ports()
    (docker / "invite.txt").write_text(f"{invite}\n", encoding="ascii")
    compose("up", "-d", "--no-build", "peer")
    codes = podman("wait", peer, limit_s=ROUND_LIMIT_S).split()
    podman("stop", "--time", "60", host)  # it keeps the model of a complete run for those who ask
    codes += podman("wait", host).split()
    for name, code in zip((peer, host), codes, strict=True):
        said = podman("logs", name)
        (docker / f"{name}.log").write_text(said, encoding="utf8")
        if code != "0":
            yield f"{name} ended with {code}: {said[-500:]}"
    if PEER_IS_DONE not in podman("logs", peer):
        yield f"{peer} ended before its run did"
    say(
        "  a peer joined the host by its name and ended with its run, and the host was stopped; root read-only, no capabilities"
    )


def _invite(podman: Podman, host: str) -> str:
    """The invite in the output of the host, which is followed until it comes, until the host ends, or until the limit."""
    words = ["timeout", f"{START_LIMIT_S:.0f}", *podman.words("logs", "--follow", host)]
    lines: list[str] = []
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as following:
        for line in following.stdout or ():
            lines.append(line)
            found = _INVITE.search(line)
            if found:
                following.terminate()
                return found[0]
    raise Failed(f"{host} printed no invite: {''.join(lines)[-500:]}")


def _closed_ports() -> Iterator[str]:
    """One sentence for each published port of the host that does not answer on this machine."""
    for port in PORTS:
        try:
            with closing(socket.create_connection(("127.0.0.1", port), timeout=10.0)):
                pass
        except OSError as error:
            yield f"port {port} of the host does not answer on this machine: {error}"
    try:
        with urllib.request.urlopen(STATUS_PAGE, timeout=10.0) as page:
            page.read(1)
    except OSError as error:
        yield f"the host's page at {STATUS_PAGE} does not answer: {error}"
