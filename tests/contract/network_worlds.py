"""The worlds in which the contract of Network is checked: p2pd processes on loopback, with bulk over libp2p or direct, and the memory
swarm.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import trio
from trio.testing import MockClock

from averaging.network.libp2p.libp2p_network import Libp2pNetwork, NetworkOptions, open_libp2p_network
from averaging.network.libp2p.p2pd import P2pdOptions
from averaging.network.memory.memory_network import MemorySwarm
from averaging.network.seams.asyncio_thread import AsyncioThread, open_asyncio_thread
from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.directory import RecordRule, signed_record_rule
from averaging.network.seams.interfaces import Network, Way
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId
from tests.averaging.network.direct_world import options_of

RUN = RunId(bytes(32))
RULE: RecordRule = signed_record_rule(Ed25519Verifier(), RUN)


class World(Protocol):
    """Peers that can be started, killed, frozen. `alice` and `bob` are up and must stay up."""

    alice: Network
    bob: Network

    async def start(self, identity: Identity) -> Network: ...
    async def kill(self, network: Network) -> None: ...
    def break_calls(self, network: Network) -> None: ...
    def freeze(self, network: Network) -> None: ...
    def thaw(self, network: Network) -> None: ...
    def unix_s(self) -> float: ...
    def identity_of(self, network: Network) -> Identity: ...


Check = Callable[[World], Awaitable[None]]


class MemoryWorld:
    alice: Network
    bob: Network

    def __init__(self, nursery: trio.Nursery) -> None:
        self._swarm = MemorySwarm(nursery, random.Random(1), record_rule=RULE)
        self._identities = {identity.peer_id: identity for identity in map(new_identity, (1, 2))}
        self.alice, self.bob = (self._swarm.start(peer) for peer in self._identities)

    async def start(self, identity: Identity) -> Network:
        self._identities[identity.peer_id] = identity
        return self._swarm.start(identity.peer_id)

    async def kill(self, network: Network) -> None:
        self._swarm.kill(network.peer_id)

    def break_calls(self, network: Network) -> None:
        self._swarm.break_calls(network.peer_id)

    def freeze(self, network: Network) -> None:
        self._swarm.freeze(network.peer_id)

    def thaw(self, network: Network) -> None:
        self._swarm.thaw(network.peer_id)

    def unix_s(self) -> float:
        return self._swarm.unix_offset_s + trio.current_time()

    def identity_of(self, network: Network) -> Identity:
        return self._identities[network.peer_id]


class RealWorld:
    """Killing a peer is killing its p2pd together with what watches it: all that another machine can see of a death."""

    alice: Network
    bob: Network

    def __init__(
        self, nursery: trio.Nursery, thread: AsyncioThread, folder: Path, *, is_direct: bool, num_substreams: int
    ) -> None:
        self._is_direct = is_direct
        self._num_substreams = num_substreams
        self._nursery = nursery
        self._thread = thread
        self._folder = folder
        self._scopes: dict[str, trio.CancelScope] = {}
        self._stopped: dict[str, trio.Event] = {}
        self._identities: dict[str, Identity] = {}
        self._networks: dict[PeerId, Network] = {}
        self._seen = (0, 0)
        self._bootstrap: tuple[str, ...] = ()

    async def open(self) -> None:
        self.alice = await self.start(new_identity(1))
        self._bootstrap = self.alice.addresses()
        self.bob = await self.start(new_identity(2))

    def check_ways(self) -> None:
        """That bulk and calls went the way that this world is about."""
        way = Way.DIRECT if self._is_direct else Way.LIBP2P
        for network in (self.alice, self.bob):
            assert {count.kind.way for count in network.traffic().bulk} <= {way}
        assert isinstance(self.alice, Libp2pNetwork)
        num_direct = self.alice.direct.calls.num_found if self.alice.direct is not None else 0
        control_bytes_up = self.alice.traffic().control_bytes_up
        before, self._seen = self._seen, (num_direct, control_bytes_up)
        if self._is_direct and control_bytes_up > before[1]:
            assert num_direct > before[0], "a call went over libp2p"

    async def start(self, identity: Identity) -> Network:
        self._identities[identity.peer_id] = identity
        network: Network = await self._nursery.start(self._run, identity)
        return network

    def _listed(self, peer: PeerId) -> tuple[BulkAddress, ...]:
        """As the directory tells it."""
        network = self._networks.get(peer)
        return network.bulk_addresses() if network is not None else ()

    async def _run(self, identity: Identity, *, task_status: trio.TaskStatus[Network]) -> None:
        file = self._folder / identity.peer_id
        file.write_bytes(identity.libp2p_private_key_bytes())
        file.chmod(0o600)
        direct = replace(options_of(identity, RUN), listed=self._listed, num_first_substreams=self._num_substreams)
        options = NetworkOptions(
            P2pdOptions(file), RULE, initial_peers=self._bootstrap, direct=direct if self._is_direct else None
        )
        self._stopped[identity.peer_id] = stopped = trio.Event()
        with trio.CancelScope() as scope:
            self._scopes[identity.peer_id] = scope
            async with open_libp2p_network(self._thread, options, identity.peer_id, unix_s=time.time) as network:
                self._networks[identity.peer_id] = network
                task_status.started(network)
                await trio.sleep_forever()
        stopped.set()

    async def kill(self, network: Network) -> None:
        self._scopes[network.peer_id].cancel()
        os.kill(_pid(network), signal.SIGKILL)
        await self._stopped[network.peer_id].wait()

    def break_calls(self, network: Network) -> None:
        assert isinstance(self.alice, Libp2pNetwork)
        assert self.alice.direct is not None
        connection = self.alice.direct.calls.live(network.peer_id)
        assert connection is not None, "no connection for calls"
        connection.close()

    def freeze(self, network: Network) -> None:
        os.kill(_pid(network), signal.SIGSTOP)
        _until_stopped(_pid(network))

    def thaw(self, network: Network) -> None:
        os.kill(_pid(network), signal.SIGCONT)

    def unix_s(self) -> float:
        return time.time()

    def identity_of(self, network: Network) -> Identity:
        return self._identities[network.peer_id]


def new_identity(number: int) -> Identity:
    """A fixed identity by number; checks use their own numbers from 10 on."""
    return Identity(number.to_bytes(32, "big"))


def _pid(network: Network) -> int:
    assert isinstance(network, Libp2pNetwork)
    assert network.p2pd_pid is not None
    return network.p2pd_pid


def _until_stopped(pid: int) -> None:
    """A thread on a busy or stolen processor runs on for a moment after the signal was sent."""
    deadline_s = time.monotonic() + 60.0
    stats = list(Path(f"/proc/{pid}/task").glob("*/stat"))
    while any(stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in stats):
        assert time.monotonic() < deadline_s, f"process {pid} did not stop"
        os.sched_yield()


def run_in_memory(check: Check) -> None:
    """Run a check in a fresh memory world in virtual time."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await check(MemoryWorld(nursery))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


@contextmanager
def open_real_world(
    folder: Path, *, is_direct: bool = False, num_substreams: int = 1
) -> Iterator[Callable[[Check], None]]:
    """A real world for many checks: trio runs in a thread of its own, p2pd starts once per peer. Direct streams get so many
    connections with their first frame that fills a line.
    """
    ready: queue.Queue[tuple[trio.lowlevel.TrioToken, RealWorld] | BaseException] = queue.Queue()
    stop = trio.Event()

    async def main() -> None:
        async with open_asyncio_thread() as thread, trio.open_nursery() as nursery:
            world = RealWorld(nursery, thread, folder, is_direct=is_direct, num_substreams=num_substreams)
            await world.open()
            ready.put((trio.lowlevel.current_trio_token(), world))
            await stop.wait()
            nursery.cancel_scope.cancel()

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            ready.put(error)
            raise

    worker = threading.Thread(target=run, name="real world")
    worker.start()
    outcome = ready.get(timeout=300)
    if isinstance(outcome, BaseException):
        raise outcome
    token, world = outcome

    def run_check(check: Check) -> None:
        trio.from_thread.run(partial(check, world), trio_token=token)
        world.check_ways()

    try:
        yield run_check
    finally:
        trio.from_thread.run_sync(stop.set, trio_token=token)
        worker.join(timeout=300)
