"""One identity on two machines: the newer process closes the older."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import pytest
import trio
import trio.testing

from averaging.network.memory.memory_network import MemorySwarm
from averaging.network.seams.directory import PeerRecord, seal_record
from averaging.network.seams.interfaces import DirectoryEntry, Network
from averaging.rounds.traffic.directory_keys import DirectoryKeys
from averaging.rounds.traffic.discovery import (
    ANNOUNCE_EVERY_S,
    IN_ROUNDS,
    LOOK_BYTES_PER_S,
    DirectoryPoller,
    announce,
    list_peers,
)
from peer.membership.credential_cache import CredentialCache
from peer.membership.process_takeover import DirectoryClaim, is_of_newer_process
from protocol.errors import MachineError
from protocol.identity.credential import make_ca
from protocol.identity.envelope import first_sequence
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, RunId
from tests.virtual import VirtualClock

RUN = RunId(b"r" * 32)
UNIX_S = 1_700_000_000.0
CA = make_ca(b"c" * 32, now_unix_s=UNIX_S)
ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)
Clock = trio.testing.MockClock


@pytest.mark.parametrize(
    ("seen_session", "is_ours", "is_newer"),
    [(8, False, True), (7, True, False), (7, False, True), (6, False, False), (0, False, False)],
    ids=["later", "our own record", "same second elsewhere", "our earlier life", "never counted"],
)
def test_a_record_of_a_later_session_or_one_of_ours_that_we_did_not_make_is_of_a_newer_process(
    seen_session: int, is_ours: bool, is_newer: bool
) -> None:
    assert is_of_newer_process(7, seen_session, is_ours=is_ours) is is_newer


def _counter(session: int) -> Callable[[], int]:
    last = first_sequence(session)

    def take() -> int:
        nonlocal last
        last += 1
        return last

    return take


def _own(session: int, identity: Identity = ALICE) -> DirectoryClaim:
    """One process with this identity: what it shows is not looked at here."""
    verifier = Ed25519Verifier()
    roster = CredentialCache(RUN, CA.certificate_der, PeerId("host"), b"credential", verifier, VirtualClock(UNIX_S))
    return DirectoryClaim(identity, RUN, session, _counter(session), verifier, roster)


class Machine:
    """A process that announces itself until something ends it."""

    def __init__(self, session: int, network: Network, identity: Identity = ALICE) -> None:
        self.own = _own(session, identity)
        self.poller = DirectoryPoller(network, DirectoryKeys(RUN))
        self.error: MachineError | None = None
        self.ended_s: float | None = None

    async def run(self) -> None:
        try:
            await announce(self.poller, VirtualClock(UNIX_S), partial(self.own.make, self.poller))
        except MachineError as error:
            self.error, self.ended_s = error, trio.current_time()


@pytest.mark.parametrize("later_s", [0.1, 15.0, ANNOUNCE_EVERY_S - 0.1, ANNOUNCE_EVERY_S, 1000.0])
async def test_the_older_process_ends_soon_after_the_newer_one_is_there_and_says_what_to_do(
    later_s: float, autojump_clock: Clock
) -> None:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))
        # Only one process of a peer has a place on this network, and the directory is all that the two share.
        network = swarm.start(ALICE.peer_id)
        older, newer = Machine(1000, network), Machine(1001, network)
        nursery.start_soon(older.run)
        await trio.sleep(later_s)
        nursery.start_soon(newer.run)
        began_s = trio.current_time()
        await trio.sleep(10 * ANNOUNCE_EVERY_S)
        assert newer.error is None
        assert older.error is not None
        assert older.ended_s is not None
        assert older.ended_s - began_s <= 2 * ANNOUNCE_EVERY_S
        line = older.error.one_line()
        assert "another process with this identity joined with a newer session;" in line
        assert "expected one process per identity" in line
        assert "--state-dir" in line
        assert older.error.exit_code == 4
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("num_others", [7, 15, 31])
async def test_looks_for_another_process_and_at_who_is_there_bring_together_no_more_than_an_idle_peer_should_take(
    num_others: int, autojump_clock: Clock
) -> None:
    """One before each record of ours brought 240 bytes a second with eight members, and the list of peers looked for itself."""
    others = [DirectoryEntry(f"peer {number}", bytes(900), UNIX_S + 1e6) for number in range(num_others)]

    class Counting:
        peer_id, brought_bytes, num_looks = ALICE.peer_id, 0, 0

        async def lookup(self, key: str) -> list[DirectoryEntry]:
            await trio.sleep(0.1)
            mine = DirectoryEntry(ALICE.peer_id, seal_record(ALICE, RUN, 1, UNIX_S + 60, bytes(800)), UNIX_S + 60)
            self.num_looks += 1
            self.brought_bytes += sum(len(entry.value) for entry in (mine, *others))
            return [mine, *others]

        async def publish(self, key: str, subkey: str, value: bytes, *, expires_unix_s: float) -> bool:
            await trio.lowlevel.checkpoint()
            return True

        def addresses(self) -> tuple[str, ...]:
            return ()

        bulk_addresses = addresses

    network, num_reported = Counting(), 0

    async def take(entries: Sequence[DirectoryEntry]) -> None:
        nonlocal num_reported
        await trio.lowlevel.checkpoint()
        num_reported += 1

    machine = Machine(1000, cast(Network, network))
    with trio.move_on_after(7200.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(machine.run)
            nursery.start_soon(list_peers, machine.poller, take, IN_ROUNDS)
    look_bytes = network.brought_bytes / network.num_looks
    assert network.brought_bytes / 7200.0 <= 1.1 * LOOK_BYTES_PER_S
    assert num_reported >= 0.8 * network.num_looks >= 0.6 * 7200.0 * LOOK_BYTES_PER_S / look_bytes, (
        "and are made, and told"
    )


async def test_in_a_large_swarm_the_older_process_ends_at_the_next_look_that_its_records_allow(
    autojump_clock: Clock,
) -> None:
    async with trio.open_nursery() as nursery:
        network = MemorySwarm(nursery, random.Random(1)).start(ALICE.peer_id)
        for number in range(31):
            await network.publish(DirectoryKeys(RUN).lobby, f"peer {number}", bytes(900), expires_unix_s=UNIX_S + 1e6)
        older, newer = Machine(1000, network), Machine(1001, network)
        nursery.start_soon(older.run)
        await trio.sleep(50.0)
        nursery.start_soon(newer.run)
        began_s = trio.current_time()
        await trio.sleep(1000.0)
        assert newer.error is None
        assert older.ended_s is not None
        assert older.ended_s - began_s <= 32 * 920 / LOOK_BYTES_PER_S + ANNOUNCE_EVERY_S
        nursery.cancel_scope.cancel()


async def test_of_two_started_in_the_same_second_no_two_go_on(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        network = MemorySwarm(nursery, random.Random(1)).start(ALICE.peer_id)
        machines = [Machine(1000, network), Machine(1000, network)]
        nursery.start_soon(machines[0].run)
        await trio.sleep(1.0)
        nursery.start_soon(machines[1].run)
        await trio.sleep(10 * ANNOUNCE_EVERY_S)
        assert any(machine.error is not None for machine in machines)
        nursery.cancel_scope.cancel()


async def test_who_restarts_takes_the_record_of_its_earlier_life_for_no_other(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        network = MemorySwarm(nursery, random.Random(1)).start(ALICE.peer_id)
        with trio.move_on_after(100.0):
            await Machine(1000, network).run()
        after = Machine(1001, network)
        nursery.start_soon(after.run)
        await trio.sleep(10 * ANNOUNCE_EVERY_S)
        assert after.error is None
        nursery.cancel_scope.cancel()


async def test_nobody_else_can_close_us(autojump_clock: Clock) -> None:
    own, far = _own(1000), first_sequence(9999)
    payload = PeerRecord(b"credential").encode()
    forged = [
        DirectoryEntry(ALICE.peer_id, seal_record(BOB, RUN, far, UNIX_S + 60, payload), UNIX_S + 60),
        DirectoryEntry(ALICE.peer_id, seal_record(ALICE, RunId(b"x" * 32), far, UNIX_S + 60, payload), UNIX_S + 60),
        DirectoryEntry(ALICE.peer_id, b"junk", UNIX_S + 60),
        DirectoryEntry(BOB.peer_id, seal_record(BOB, RUN, far, UNIX_S + 60, payload), UNIX_S + 60),
        DirectoryEntry(BOB.peer_id, seal_record(ALICE, RUN, far, UNIX_S + 60, payload), UNIX_S + 60),
    ]
    own.check(forged)
    with pytest.raises(MachineError):
        own.check([DirectoryEntry(ALICE.peer_id, seal_record(ALICE, RUN, far, UNIX_S + 60, payload), UNIX_S + 60)])


async def test_a_directory_that_is_away_ends_nobody(autojump_clock: Clock) -> None:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))
        machine = Machine(1000, swarm.start(ALICE.peer_id))
        swarm.is_directory_up = False
        nursery.start_soon(machine.run)
        await trio.sleep(10 * ANNOUNCE_EVERY_S)
        swarm.is_directory_up = True
        await trio.sleep(10 * ANNOUNCE_EVERY_S)
        assert machine.error is None
        records = await machine.poller.network.lookup(DirectoryKeys(RUN).lobby)
        assert [entry.subkey for entry in records] == [ALICE.peer_id]
        nursery.cancel_scope.cancel()
