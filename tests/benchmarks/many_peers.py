"""The cost of many peers.

    python -m tests.benchmarks.many_peers --json FILE [--quick] [--parts host simulated deaths] [--sizes 128]

- host: the real service on loopback, with thin clients over gRPC and TLS.
- simulated: how many bytes peers send one another (many_peers_virtual.py).
- deaths: how soon a death is noticed by all.

Processor time of the host's process is counted, not wall time, since other programs share the machine. Its part in the thread of trio
and in the threads of ledger and signatures is the service; all else is gRPC and TLS. Figures of reports leave out what the host spends
at rest with as many peers, which stands in rows of its own. Reports come at the rate of a large run, 50 a second, at every size.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Final
from urllib.parse import urlsplit

from protocol.ids import CommitId, RunId
from tests.benchmarks.many_peers_virtual import death_rows, virtual_rows
from tests.benchmarks.processes import die_with_parent
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.thin_clients import HostAt, OpenPage, ThinClient, at_most_at_once, bringing, make_clients, spread
from tests.benchmarks.thin_clients import training as training_report
from tests.coordinator.host_world import UNIT

BENCH: Final = "many_peers"
REPORTS_PER_S: Final = 50.0
A_FEW_PER_S: Final = 5.0
MOST_REPORT_MS: Final = 3.0
MOST_PAGES_SHARE: Final = 0.2
MOST_ADMISSION_S: Final = 60.0
AT_ONCE: Final = 8
"""Newcomers whose calls are under way at a time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done. `num_clients` are the sizes of the run, smallest first; `span_s` is how long each figure is counted."""

    num_clients: tuple[int, ...]
    num_admitted: int
    num_rounds: int
    num_pages: int
    span_s: float
    num_simulated: tuple[int, ...]
    num_dying: tuple[int, ...]


FULL: Final = Plan((64, 500, 2000), 500, 500, 100, 20.0, (64, 128, 256), (256,))
QUICK: Final = Plan((64, 500), 64, 50, 100, 4.0, (32,), (32,))
PARTS: Final = ("host", "simulated", "deaths")


@dataclass(frozen=True, slots=True)
class Used:
    """Processor seconds of the host's process, those of the service in it, and how often the work of each second was done."""

    all_s: float
    service_s: float
    ticks: int = 1

    def since(self, before: Used) -> Used:
        """The difference."""
        return Used(self.all_s - before.all_s, self.service_s - before.service_s, self.ticks - before.ticks)

    def without(self, rest: Used) -> Used:
        """Without what the host spends at rest, by its ticks: on a busy machine they are fewer than the seconds."""
        times = self.ticks / max(1, rest.ticks)
        return Used(self.all_s - times * rest.all_s, self.service_s - times * rest.service_s, self.ticks)


NOTHING: Final = Used(0.0, 0.0)


class Host:
    """The host's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("a host without pipes")
        self._process = process
        self._orders: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout

    def answer(self) -> dict[str, object]:
        """Its next line."""
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the host ended with {self._process.wait()}")
        found: dict[str, object] = json.loads(line)
        return found

    async def ask(self, order: str) -> dict[str, object]:
        """Give an order and wait for its answer, while clients go on."""
        self._orders.write(f"{order}\n")
        self._orders.flush()
        return await asyncio.to_thread(self.answer)

    async def used(self) -> Used:
        """Processor time so far."""
        told = await self.ask("times")
        return Used(float(str(told["all_s"])), float(str(told["service_s"])), int(str(told["ticks"])))

    async def rest(self, span_s: float) -> Used:
        """Its use with nothing but its own work."""
        before = await self.used()
        await asyncio.sleep(span_s)
        return (await self.used()).since(before)


async def _cost(host: Host, rest: Used, work: Callable[[], Awaitable[int]], count: int) -> tuple[Used, int, float]:
    """The use of each of `count` things, without what the host spends at rest; how many succeeded; seconds in all."""
    before, begin_s = await host.used(), time.monotonic()
    succeeded = await work()
    lasted_s, used = time.monotonic() - begin_s, (await host.used()).since(before).without(rest)
    return Used(used.all_s / count, used.service_s / count), succeeded, lasted_s


class Bench:
    """One host, more and more clients, and the rows that come of it."""

    def __init__(self, host: Host, at: HostAt, page_port: int, plan: Plan) -> None:
        self._host, self._at, self._page_port, self._plan = host, at, page_port, plan
        self._clients: list[ThinClient] = []
        self._head, self._index, self._certificate = CommitId(b""), 0, b""
        self._tokens = 0
        self.rows: list[Row] = []

    async def run(self) -> None:
        """Everything, smallest run first."""
        await self._commit()
        await self._admit(self._plan.num_admitted, self._plan.num_admitted)
        for count in self._plan.num_clients:
            if count > len(self._clients):
                await self._admit(count - len(self._clients), None)
            await self._size(self._clients[:count])

    async def _commit(self) -> None:
        told = await self._host.ask("commit")
        self._head, self._index = CommitId(bytes.fromhex(str(told["commit"]))), int(str(told["index"]))
        self._certificate = bytes.fromhex(str(told["certificate"]))

    async def _admit(self, count: int, judged: int | None) -> None:
        """Admit newcomers; the row is made of the first ones."""
        new = make_clients(self._at, count, len(self._clients))
        self._clients += new
        work = partial(at_most_at_once, [client.admit for client in new], AT_ONCE)
        each, succeeded, lasted_s = await _cost(self._host, NOTHING, work, count)
        reasons = sorted({reason for client in new for reason in client.refused})
        if judged is None:
            if succeeded < count:
                raise RuntimeError(f"{count - succeeded} of {count} were refused: {reasons}")
            return
        self._say(f"admission of {count} in a row", lasted_s, "s", MOST_ADMISSION_S, reasons=reasons)
        self._say(f"admission of {count} in a row: refused", count - succeeded, "peers", 0, reasons=reasons)
        self._say(f"admission of {count} in a row: processor time of each", 1000 * each.all_s, "ms")

    def _report(self, client: ThinClient, *, brings: bool = False) -> Callable[[], Awaitable[bool]]:
        self._tokens += 1
        report = training_report(client, UNIT, self._head, self._index, self._tokens)
        return partial(client.report, bringing(report, self._certificate) if brings else report)

    async def _all_report(self, clients: Sequence[ThinClient], per_s: float = 200.0) -> int:
        return await spread([self._report(client) for client in clients], per_s)

    async def _size(self, clients: list[ThinClient]) -> None:
        """The figures of a run of this size."""
        host, plan, count = self._host, self._plan, len(clients)
        await self._report(clients[0], brings=True)()
        await self._all_report(clients)
        rest = await host.rest(plan.span_s)
        self._say(f"{count} peers: the host at rest, each second", 1000 * rest.all_s / rest.ticks, "ms")
        many = round(plan.span_s * REPORTS_PER_S)
        turns = [self._report(clients[place % count]) for place in range(many)]
        each, succeeded, _ = await _cost(host, rest, partial(spread, turns, REPORTS_PER_S), many)
        self._say_report(count, "of moving numbers", each, many - succeeded)
        await self._commit()
        await self._report(clients[0], brings=True)()
        rest = await host.rest(plan.span_s / 4)
        whole, succeeded, _ = await _cost(host, rest, partial(self._all_report, clients, REPORTS_PER_S), count)
        self._say_report(count, "of a new head", whole, count - succeeded)
        await self._pages(clients, rest, each)

    def _say_report(self, count: int, what: str, each: Used, failed: int) -> None:
        limit = MOST_REPORT_MS if count == self._plan.num_clients[-1] else None
        name = f"{count} peers: processor time of a report {what}"
        self._say(name, 1000 * each.service_s, "ms", limit, failed=failed)
        self._say(f"{name}, gRPC and TLS beside it", 1000 * (each.all_s - each.service_s), "ms")

    async def _pages(self, clients: Sequence[ThinClient], rest: Used, report: Used) -> None:
        """Open pages while a few reports come, so that there is something new in each second, and a round is committed. `report`: what
        a report uses, which is not the pages' part.
        """
        plan, count = self._plan, len(clients)
        pages = [OpenPage(self._page_port) for _ in range(plan.num_pages)]
        looking = [asyncio.ensure_future(page.look()) for page in pages]
        await asyncio.sleep(max(2.0, plan.span_s / 4))
        begun = sum(page.num_events for page in pages)
        turns = [self._report(clients[place % count]) for place in range(round(plan.span_s * A_FEW_PER_S))]
        before = await self._host.used()
        await spread(turns[::2], A_FEW_PER_S)
        await self._commit()
        await self._report(clients[0], brings=True)()
        await spread(turns[1::2], A_FEW_PER_S)
        used = (await self._host.used()).since(before)
        share = (used.without(rest).all_s - len(turns) * report.all_s) / max(1, used.ticks)
        num_events = (sum(page.num_events for page in pages) - begun) / len(pages) / max(1, used.ticks)
        num_bytes = sum(page.num_bytes for page in pages) / len(pages)
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)
        name = f"{count} peers: {plan.num_pages} open pages"
        about = {"changes_per_s": round(num_events, 2), "bytes_a_page": round(num_bytes)}
        self._say(name, share, "of a core", MOST_PAGES_SHARE, **about)

    def _say(self, metric: str, value: float, unit: str, limit: float | None = None, **settings: object) -> None:
        target = "" if limit is None else f"<= {limit:g}"
        met = None if limit is None else value <= limit
        about = {"reports_per_s": REPORTS_PER_S, "rounds": self._plan.num_rounds, "machine": machine(), **settings}
        row = Row(BENCH, metric, round(value, 4), unit, target=target, met=met, trials=1, settings=about)
        print(f"{metric}: {value:.4g} {unit} {target} {settings or ''}", flush=True)
        self.rows.append(row)


def host_rows(plan: Plan) -> list[Row]:
    """All figures of the host."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.benchmarks.many_peers_host", folder, str(plan.num_rounds)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent
        )
        try:
            host = Host(process)
            told = host.answer()
            run_id = RunId(bytes.fromhex(str(told["run_id"])))
            at = HostAt(int(str(told["port"])), bytes.fromhex(str(told["ca"])), run_id)
            bench = Bench(host, at, urlsplit(str(told["url"])).port or 0, plan)
            asyncio.run(bench.run())
            return bench.rows
        finally:
            process.kill()
            process.wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """All figures; a line each as it comes, then the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.many_peers")
    parser.add_argument("--json", type=Path, help="write the rows there, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="fewer clients and shorter spans, to see that it works")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sizes", nargs="+", type=int, help="numbers of simulated peers, in place of the plan's")
    args = parser.parse_args(arguments)
    plan = QUICK if args.quick else FULL
    rows = host_rows(plan) if "host" in args.parts else []
    simulated = virtual_rows(args.sizes or plan.num_simulated) if "simulated" in args.parts else ()
    deaths = death_rows(args.sizes or plan.num_dying) if "deaths" in args.parts else ()
    for row in chain(simulated, deaths):
        print(f"{row.metric}: {row.value:.4g} {row.unit} {row.target} {row.settings}", flush=True)
        rows.append(row)
    if args.json is not None:
        write_rows(rows, args.json)
    print_rows(rows, "many peers: what they cost")


if __name__ == "__main__":
    main()
