"""`python -m tests.prometheus`: a real host and peer, scraped by a real Prometheus with the project's own configuration.

Needs the program `prometheus` (Debian: `apt-get install prometheus`; or `--prometheus PATH`). Of `docker/prometheus/prometheus.yml`
only the way to find the two daemons and the intervals are replaced. Looks, over Prometheus' own HTTP interface, that both are up, that
what they serve is there and moves, that every alerting rule is evaluated without an error, and every expression of every board.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import yaml

from tests.docker.assets import DOCKER, boards, exported, yaml_of
from tests.e2e.processes import LOOPBACK, PEER_FLAGS, running_potluck
from tests.e2e.test_bad_input import RUN_TOML
from tests.forked import open_forked

WITHIN_S: Final = 90.0
LOOK_EVERY_S: Final = 0.5
EVERY_S: Final = 1
"""Between two scrapes; docker/ has 15 s, for which nobody wants to wait here."""

MOVES: Final = ("potluck_run_tokens", "potluck_peer_run_tokens", "potluck_peer_tokens_trained_total")
"""Series that grow while a run is trained."""

_VARIABLES: Final = {"$__rate_interval": "1m", "$__interval": "15s", "$__range": "5m", "$instance": ".*"}
_ANSWER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Server:
    """The running Prometheus."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self._url = f"http://127.0.0.1:{port}/api/v1/"
        self._log = log

    def ask(self, path: str, **parameters: str) -> Any:
        """The answer at `path` of its interface; None while there is none."""
        url = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with _ANSWER.open(url, timeout=5) as reply:
                return json.loads(reply.read())["data"]
        except urllib.error.HTTPError as error:
            is_not_ready = error.code == HTTPStatus.SERVICE_UNAVAILABLE  # while it starts, in words that are no JSON
            return None if is_not_ready else json.loads(error.read())
        except OSError:
            return None

    def values(self, promql: str) -> list[float]:
        """The values of an expression now."""
        found = self.ask("query", query=promql)
        return [float(row["value"][1]) for row in found["result"]] if found and "result" in found else []

    def wait(self, what: str, is_so: Callable[[], bool]) -> None:
        """Raises SystemExit with one line where it does not become so."""
        deadline_s = time.monotonic() + WITHIN_S
        while not is_so():
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                last = self._log.read_text(errors="replace").splitlines()[-1:] or ["nothing"]
                raise SystemExit(f"not within {WITHIN_S:.0f} s: {what}; prometheus said last: {last[0]}")
            try:
                self.process.wait(timeout=LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                continue


def configuration(targets: dict[str, str]) -> str:
    """The project's own, with `targets` (host:port by job) in the place of compose's names."""
    config = yaml_of("prometheus/prometheus.yml")
    config["global"] = {"scrape_interval": f"{EVERY_S}s", "scrape_timeout": "1s", "evaluation_interval": f"{EVERY_S}s"}
    config["rule_files"] = [str(DOCKER / "prometheus" / name) for name in config["rule_files"]]
    config["scrape_configs"] = [
        {**{key: value for key, value in job.items() if key != "dns_sd_configs"}, "static_configs": [{"targets": [at]}]}
        for job in config["scrape_configs"]
        for at in [targets[job["job_name"]]]
    ]
    return yaml.safe_dump(config)


@contextmanager
def scraping(program: str, folder: Path, targets: dict[str, str]) -> Iterator[Server]:
    """A Prometheus that scrapes these; it ends with the block."""
    (folder / "prometheus.yml").write_text(configuration(targets), encoding="utf8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    log = folder / "prometheus.log"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield Server(process, port, log)
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def daemons(folder: Path) -> Iterator[dict[str, str]]:
    """A host and a peer that train a tiny run; where their metrics are, by job."""
    (folder / "run.toml").write_text(RUN_TOML)
    (folder / "texts").mkdir()
    for number in range(4):
        (folder / "texts" / f"{number}.txt").write_text(f"text number {number}, " * 100)
    with ExitStack() as stack:
        forked = stack.enter_context(open_forked("peer.daemon", "peer.worker", "coordinator.daemon"))
        arguments = ("host", str(folder / "run.toml"), "--state-dir", str(folder / "host"), *LOOPBACK)
        host = stack.enter_context(running_potluck(folder, "host process", *arguments, forked=forked))
        invite = host.wait_for(r"(potluck1:\S+)\n")
        joining = ("join", invite, "--state-dir", str(folder / "peer"), *PEER_FLAGS, "--slowdown", "20")
        peer = stack.enter_context(running_potluck(folder, "peer process", *joining, forked=forked))
        at = host.wait_for(r"metrics +http://(\S+)/metrics"), peer.wait_for(r"status page: http://(\S+?)/?\s")
        yield dict(zip(("host", "peer"), at, strict=True))


def expressions() -> list[str]:
    """Those of every panel of every board, with Grafana's variables filled in."""
    found = [t["expr"] for board in boards().values() for panel in board["panels"] for t in panel["targets"]]
    for name, value in _VARIABLES.items():
        found = [promql.replace(name, value) for promql in found]
    return found


def look(server: Server) -> list[str]:
    """The errors; prints the findings."""
    server.wait("both daemons are up", lambda: sorted(server.values("up")) == [1.0, 1.0])
    print(f"up: {', '.join(row['metric']['job'] for row in server.ask('query', query='up')['result'])}")
    for name in MOVES:
        server.wait(f"{name} grows", lambda name=name: any(v > 0 for v in server.values(f"delta({name}[1m])")))
        print(f"{name} = {server.values(name)[0]:,.0f}, and grows")

    def rules() -> list[Any]:
        groups = (server.ask("rules") or {}).get("groups", [])
        return [rule for group in groups for rule in group["rules"]]

    server.wait("the rules are evaluated", lambda: all(r["health"] != "unknown" for r in rules()) and bool(rules()))
    wrong = [f"alert {rule['name']}: {rule['lastError']}" for rule in rules() if rule["health"] != "ok"]
    firing = [rule["name"] for rule in rules() if rule["state"] == "firing"]
    print(f"{len(rules())} alerting rules evaluated; firing: {', '.join(firing) or 'none'}")
    answers = [(promql, server.ask("query", query=promql)) for promql in expressions()]
    wrong += [f"board: {promql}: {a and a.get('error')}" for promql, a in answers if not a or "result" not in a]
    empty = [promql for promql, answer in answers if not (answer and answer.get("result"))]
    print("\n  ".join((f"{len(answers)} expressions of boards evaluated; {len(empty)} have nothing to show:", *empty)))
    there = set(server.ask("label/__name__/values") or ())
    print(
        f"{len(exported() & there)} of {len(exported())} metrics have values; without: {', '.join(sorted(exported() - there))}"
    )
    return wrong


def main() -> int:
    """Exit code 1 when anything is wrong, or there is no Prometheus."""
    parser = argparse.ArgumentParser(prog="python -m tests.prometheus", description=__doc__)
    parser.add_argument("--prometheus", default="prometheus", help="the program, by name or path")
    program = shutil.which(parser.parse_args().prometheus)
    if program is None:
        print("there is no program prometheus here; install Debian's, or name one with --prometheus", file=sys.stderr)
        return 1
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    print((version.stdout or version.stderr).partition(" (")[0])
    with tempfile.TemporaryDirectory(prefix="potluck-prometheus.") as name:
        folder = Path(name)
        with daemons(folder) as targets, scraping(program, folder, targets) as server:
            wrong = look(server)
    for line in wrong:
        print(line)
    print(f"{len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
