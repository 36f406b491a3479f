"""Keys by unit and group: no key holds more records than one answer carries, and everybody finds everybody."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Final

import pytest
import trio
import trio.testing

from averaging.network.memory.memory_network import MemorySwarm
from averaging.network.seams.interfaces import DirectoryEntry, Network
from averaging.rounds.traffic.directory_keys import (
    FULL_KEY_PEERS,
    GROUP_PEERS,
    KEYS_A_LOOK,
    LOBBY_EVERY_S,
    LOBBY_PEERS,
    DirectoryKeys,
    keys_of,
)
from averaging.rounds.traffic.discovery import MAX_RECORDS_KEPT, DirectoryPoller, announce, list_peers
from protocol.ids import PeerId, RunId, UnitName
from protocol.run.manifest import RunManifest, default_run_toml, parse_run_config
from tests.protocol.run.made_manifest import manifest_of
from tests.virtual import VirtualClock

RUN: Final = RunId(b"r" * 32)
UNIX_S: Final = 1_700_000_000.0
RECORD: Final = bytes(1000)
MOST_RECORDS: Final = 4_000
"""Records of a kilobyte that fit into one answer."""

STAGES: Final = tuple(UnitName(f"stage-{number}") for number in range(64))
EXPERTS: Final = tuple(UnitName(f"expert-{number}") for number in range(256))


def _peers(count: int) -> list[PeerId]:
    return [PeerId(f"peer-{number:05}") for number in range(count)]


def _keys(most_peers: int, parts: tuple[UnitName, ...] = ()) -> DirectoryKeys:
    return DirectoryKeys(RUN, most_peers, parts[0] if parts == STAGES else UnitName("all"), parts)


def _manifest(more: str) -> RunManifest:
    text = default_run_toml().replace("[run]", f"[run]\n{more}", 1)
    return manifest_of(parse_run_config(text))


def test_a_run_whose_manifest_older_releases_read_keeps_their_one_key() -> None:
    manifest = _manifest("")
    keys = keys_of(manifest)
    assert b"max_peers" not in manifest.canonical_bytes(), "the word that asks for a release with groups"
    assert keys.home(PeerId("a"), ()) == f"potluck/{manifest.run_id.hex()}/peers"
    assert keys.looked_at(PeerId("a"), (), 7) == (keys.home(PeerId("b"), ()),)
    assert not keys.is_in_lobby(PeerId("a"), [], UNIX_S)


def test_a_run_of_more_peers_than_a_round_takes_has_groups_and_says_so_by_its_manifest() -> None:
    manifest = _manifest("max_peers = 500\n")
    keys = keys_of(manifest)
    assert b"max_peers" in manifest.canonical_bytes()
    assert keys.num_groups == 8
    assert keys.home(PeerId("a"), ()).startswith(f"potluck/{manifest.run_id.hex()}/{keys.spine}/")


@pytest.mark.parametrize(("most_peers", "parts"), [(65, ()), (500, ()), (7_500, ()), (7_500, STAGES), (7_500, EXPERTS)])
def test_no_key_of_a_full_run_holds_more_records_than_an_answer_carries_however_its_peers_are_spread(
    most_peers: int, parts: tuple[UnitName, ...]
) -> None:
    keys, peers = _keys(most_peers, parts), _peers(most_peers)
    for held in (lambda place: (place % len(parts),) if parts else (), lambda place: ()):
        homes = Counter(keys.home(peer, held(place)) for place, peer in enumerate(peers))
        assert max(homes.values()) < 1.2 * FULL_KEY_PEERS < MOST_RECORDS
    even = Counter(keys.home(peer, (place % len(parts),) if parts else ()) for place, peer in enumerate(peers))
    assert max(even.values()) < 2 * GROUP_PEERS


def test_a_run_of_the_most_peers_has_no_key_that_is_too_full() -> None:
    for parts in ((), STAGES, EXPERTS):
        assert 100_000 / _keys(100_000, parts).num_groups <= FULL_KEY_PEERS


@pytest.mark.parametrize(("most_peers", "parts"), [(65, ()), (500, ()), (7_500, ()), (7_500, STAGES), (7_500, EXPERTS)])
def test_a_peer_looks_at_its_own_group_and_the_lobby_each_time_and_at_every_key_in_its_turn(
    most_peers: int, parts: tuple[UnitName, ...]
) -> None:
    keys, me, held = _keys(most_peers, parts), PeerId("me"), (3,) if parts else ()
    everything = {
        keys.home(PeerId(f"{n}"), (n % len(parts),) if parts else ()) for n in range(30 * most_peers // GROUP_PEERS)
    } | {keys.lobby}
    turns = [keys.looked_at(me, held, turn) for turn in range(len(everything) // 2 + 2)]
    for looked_at in turns:
        assert looked_at[:2] == (keys.home(me, held), keys.lobby)
        assert len(set(looked_at)) == len(looked_at) <= KEYS_A_LOOK
    assert {key for looked_at in turns for key in looked_at} >= everything


def test_a_peer_sees_the_groups_of_its_own_unit_sooner_than_all_others() -> None:
    keys = _keys(30_000, STAGES)
    own = {keys.home(PeerId(f"{n}"), (3,)) for n in range(10_000)}
    turns = [keys.looked_at(PeerId("me"), (3,), turn) for turn in range(8)]
    assert {key for looked_at in turns for key in looked_at} >= own


def test_the_lobby_holds_few_peers_of_a_large_run_and_others_each_hour() -> None:
    keys, peers = _keys(600), _peers(600)
    in_lobby = [
        [peer for peer in peers if keys.is_in_lobby(peer, peers, UNIX_S + hour * LOBBY_EVERY_S)] for hour in (0, 1)
    ]
    assert [len(some) for some in in_lobby] == [LOBBY_PEERS, LOBBY_PEERS]
    assert len({*in_lobby[0]} & {*in_lobby[1]}) < LOBBY_PEERS / 2
    assert all(keys.is_in_lobby(peer, peers[:LOBBY_PEERS], UNIX_S) for peer in peers[:LOBBY_PEERS]), (
        "a small swarm, all of it"
    )


class _Node:
    """A peer that announces itself and lists the others."""

    def __init__(self, network: Network, keys: DirectoryKeys) -> None:
        self.poller = DirectoryPoller(network, keys)
        self.listed: set[str] = set()

    async def make(self, _expires_unix_s: float) -> bytes:
        await self.poller.poll()
        return RECORD

    async def take(self, entries: Sequence[DirectoryEntry]) -> None:
        await trio.lowlevel.checkpoint()
        self.listed = {entry.subkey for entry in entries}


async def _publish_all(network: Network, keys: DirectoryKeys, peers: Sequence[PeerId]) -> None:
    for peer in peers:
        in_lobby = (keys.lobby,) if peer in peers[:LOBBY_PEERS] else ()
        for key in dict.fromkeys((keys.home(peer, ()), *in_lobby)):
            await network.publish(key, peer, RECORD, expires_unix_s=UNIX_S + 3000.0)


async def test_a_newcomer_to_five_thousand_peers_finds_a_way_in_at_its_first_look_and_all_of_them_in_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    peers, keys = _peers(5_000), _keys(5_000)
    async with trio.open_nursery() as nursery:
        network = MemorySwarm(nursery, random.Random(1)).start(PeerId("newcomer"))
        await _publish_all(network, keys, peers)
        poller = DirectoryPoller(network, keys)
        found = await poller.poll()
        assert len(found) >= LOBBY_PEERS + GROUP_PEERS / 2
        for _ in range(keys.num_groups // (KEYS_A_LOOK - 2) + 1):
            found = await poller.poll()
        assert {entry.subkey for entry in found} == {*peers}
        nursery.cancel_scope.cancel()


async def test_of_the_largest_run_a_peer_keeps_no_more_records_than_it_may_and_its_own_group_always(
    autojump_clock: trio.testing.MockClock,
) -> None:
    keys = _keys(100_000)
    own = keys.home(PeerId("me"), ())
    poller = DirectoryPoller(_Endless(), keys)  # type: ignore[arg-type]
    most = 0
    for _ in range(20):
        found = await poller.poll()
        most = max(most, len(found))
        assert any(entry.subkey == f"{own} 0" for entry in found)
    assert MAX_RECORDS_KEPT - FULL_KEY_PEERS <= most <= MAX_RECORDS_KEPT + KEYS_A_LOOK * FULL_KEY_PEERS


async def test_five_thousand_peers_under_one_key_are_found_by_nobody_so_the_test_above_shows_something(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        network = MemorySwarm(nursery, random.Random(1)).start(PeerId("newcomer"))
        await _publish_all(network, _keys(1), _peers(5_000))
        assert await DirectoryPoller(network, _keys(1)).poll() == ()
        nursery.cancel_scope.cancel()


async def test_peers_of_a_large_run_announce_themselves_in_their_groups_and_find_each_other(
    autojump_clock: trio.testing.MockClock,
) -> None:
    peers, keys = _peers(12), _keys(1_000)
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))
        nodes = [_Node(swarm.start(peer), keys) for peer in peers]
        for node in nodes:
            nursery.start_soon(announce, node.poller, VirtualClock(UNIX_S), node.make)
            nursery.start_soon(list_peers, node.poller, node.take)
        await trio.sleep(60.0)
        assert all(node.listed == {*peers} - {node.poller.network.peer_id} for node in nodes)
        nursery.cancel_scope.cancel()


class _Endless:
    """A directory in which every key is as full as it may be."""

    peer_id = PeerId("me")

    async def lookup(self, key: str) -> Sequence[DirectoryEntry]:
        await trio.lowlevel.checkpoint()
        return [DirectoryEntry(f"{key} {number}", b"", UNIX_S) for number in range(FULL_KEY_PEERS)]


class _Flaky:
    """A directory whose look-ups of some keys fail for a while."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.peer_id = network.peer_id
        self.is_failing = False

    async def lookup(self, key: str) -> Sequence[DirectoryEntry]:
        is_lobby = key.endswith("/lobby")
        return () if self.is_failing and not is_lobby else await self._network.lookup(key)


async def test_a_key_that_does_not_answer_once_drops_nobody_and_one_that_stays_empty_does(
    autojump_clock: trio.testing.MockClock,
) -> None:
    peers, keys = _peers(200), _keys(200)
    async with trio.open_nursery() as nursery:
        network = MemorySwarm(nursery, random.Random(1)).start(PeerId("newcomer"))
        await _publish_all(network, keys, peers)
        flaky = _Flaky(network)
        poller = DirectoryPoller(flaky, keys)  # type: ignore[arg-type]
        assert len(await poller.poll()) == 200
        flaky.is_failing = True
        assert len(await poller.poll()) == 200
        assert len(await poller.poll()) == LOBBY_PEERS
        flaky.is_failing = False
        assert len(await poller.poll()) == 200
        nursery.cancel_scope.cancel()
