"""The host of `many_peers`: the real service over gRPC and TLS, its page, its ledger on disk and its work of each second.

    python -m tests.benchmarks.many_peers_host FOLDER NUM_ROUNDS

The run is under way, with so many rounds of NUM_MEMBERS voters in the ledger: the first of the clients. Each line on standard input is
an order; its answer is one line of JSON on standard output. `times`: processor seconds so far, and how often the work of each second
was done. `commit`: makes the next round, and gives its certificate. `end` ends it.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import structlog
import trio

from averaging.host.http import bind_http, serve_http
from averaging.network.seams.asyncio_thread import open_asyncio_thread
from averaging.network.seams.clocks import SystemClock
from averaging.network.seams.offload import ThreadOffload
from coordinator.admission.rpc import ServerTls, open_rpc_server
from coordinator.checkpoints.verify import verify_checkpoint
from coordinator.ledger.ledger import START_RECORD
from coordinator.ledger.memory_keeper import MemoryKeeper
from coordinator.progress.run_events import EventBook, event_row
from coordinator.status.metrics.moment import Counts, Moment
from coordinator.status.status_page import RunSource, status_app
from protocol.host.calls import START_DOMAIN, TLS_SERVER_NAME
from protocol.identity.credential import BACKDATE_S
from protocol.identity.envelope import NEVER_MS, seal
from protocol.ids import CommitId
from protocol.rounds.lineage.rule_numbers import NEW_RUNS
from protocol.rounds.messages.start import StartRecord
from protocol.rounds.messages.wire import encode_body
from tests.benchmarks.thin_clients import identity_of
from tests.coordinator.chain_world import HOST, Chain, rows_of
from tests.coordinator.host_world import RUN_TOML, HostWorld, open_host

T = TypeVar("T")

MOST_PEERS: Final = 100_000
NUM_MEMBERS: Final = 64
LOOPBACK: Final = "127.0.0.1"
TOML: Final = RUN_TOML.replace("total_tokens = 1000", f"total_tokens = {1 << 50}\nmax_peers = {MOST_PEERS}")
TICK_S: Final = 1.0


@dataclass
class Ticks:
    """How often the work of each second was done."""

    number: int = 0


@dataclass
class CountedOffload:
    """Threads of the ledger and of signatures, with the processor seconds that they took."""

    threads: ThreadOffload = field(default_factory=ThreadOffload)
    cpu_s: float = 0.0

    async def run(self, function: Callable[[], T], *, cost_s: float = 0.0) -> T:
        """The function's result."""

        def counted() -> tuple[T, float]:
            begin_s = time.thread_time()
            return function(), time.thread_time() - begin_s

        found, cpu_s = await self.threads.run(counted, cost_s=cost_s)
        self.cpu_s += cpu_s
        return found


@contextmanager
def _opened(folder: Path, num_rounds: int, offload: CountedOffload) -> Iterator[tuple[HostWorld, Chain]]:
    """The host of a run under way."""
    with open_host(folder, SystemClock(), toml=TOML, offload=offload) as host:
        members = sorted((identity_of(number) for number in range(NUM_MEMBERS)), key=lambda member: member.peer_id)
        roster = tuple(member.peer_id for member in members)
        start = StartRecord(host.run_id, host.start_units, roster, 300, int(host.clock.unix_s()), rules=NEW_RUNS)
        chain = Chain(host.run_id, members=tuple(members), given_start=encode_body(start))
        for _ in range(num_rounds):
            _commit(chain)
        sealed = seal(HOST, START_DOMAIN, host.run_id, 0, NEVER_MS, chain.start_payload)
        host.ledger.put_once(START_RECORD, sealed)
        host.ledger.add_progress(rows_of(chain.certificates), ())
        host.invite(uses=MOST_PEERS)
        yield host, chain


def _commit(chain: Chain) -> CommitId:
    """One more round, with everybody in it and the acks of just a quorum."""
    return chain.commit(tuple(range(100, 100 + NUM_MEMBERS)), voters=NUM_MEMBERS // 2 + 1)


async def _work_of_each_second(host: HostWorld, events: EventBook, memory: MemoryKeeper, ticks: Ticks) -> None:
    """The work of the daemon beside calls and pages."""
    tracker, clock = host.tracker, host.clock
    while True:
        await tracker.tick()
        picture = tracker.picture()
        new = events.note(picture, clock.monotonic_s(), int(clock.unix_s()), tracker.helpers)
        heard_s = {peer: entry.seen_s for peer, entry in picture.peers.items()}
        chosen = {peer: entry.report.chosen for peer, entry in picture.peers.items()}
        await memory.look(tracker.chain, heard_s, events.states, [event_row(event) for event in new], chosen)
        ticks.number += 1
        await trio.sleep(TICK_S)


async def _obey(chain: Chain, offload: CountedOffload, ticks: Ticks) -> None:
    """Orders until the last one, or until whoever gives them is gone."""
    async for line in trio.wrap_file(sys.stdin):
        order = line.strip()
        if order == "end":
            return
        if order == "commit":
            commit = _commit(chain)
            _tell({"commit": commit.hex(), "index": chain.head[1], "certificate": chain.certificates[-1].hex()})
        else:
            used = resource.getrusage(resource.RUSAGE_SELF)
            service_s = time.thread_time() + offload.cpu_s
            _tell({"all_s": used.ru_utime + used.ru_stime, "service_s": service_s, "ticks": ticks.number})


def _tell(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


async def _serve(folder: Path, num_rounds: int) -> None:
    offload, clock = CountedOffload(), SystemClock()
    with _opened(folder, num_rounds, offload) as (host, chain):
        await host.tracker.restore()
        events, memory, ticks = EventBook(), MemoryKeeper(host.writer, clock), Ticks()
        events.restore(await memory.restore())

        def moment() -> Moment:
            return Moment(host.tracker.picture(), Counts(), clock.monotonic_s(), past=memory.past, reach=events.reach)

        begin_unix_s = host.authority.certificate.not_valid_before_utc.timestamp() + BACKDATE_S
        tls = ServerTls(*host.authority.issue_server((TLS_SERVER_NAME,), now_unix_s=begin_unix_s))
        source = RunSource(moment, lambda most: tuple(events.newest(most)), verify_checkpoint)
        async with (
            open_asyncio_thread() as thread,
            open_rpc_server(host.service, thread, tls, host=LOOPBACK, port=0) as server,
            trio.open_nursery() as nursery,
        ):
            (url,) = await nursery.start(serve_http, bind_http(LOOPBACK, 0), status_app(source))
            nursery.start_soon(_work_of_each_second, host, events, memory, ticks)
            authority = host.authority.certificate_der.hex()
            _tell({"port": server.port, "url": url, "ca": authority, "run_id": host.run_id.hex()})
            await _obey(chain, offload, ticks)
            nursery.cancel_scope.cancel()


def main() -> None:
    """Serve until told to end."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    trio.run(_serve, Path(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    main()
