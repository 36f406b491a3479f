from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import structlog.testing
import trio

from averaging.data.shard_exchange import SHARD_CHANNEL, serve_shards
from averaging.data.shards import DatasetManifest, RouterEntry, ShardCache, ShardEntry, TokenizerEntry
from averaging.models.llama.config import LlamaConfig
from averaging.network.memory.memory_network import MemorySwarm
from averaging.network.seams.interfaces import StreamHandler
from averaging.state.start_state import start_root
from peer.membership.joining import (
    DATA_WITHIN_S,
    Membership,
    admit,
    check_clock_again,
    check_invite,
    check_start,
    come_back,
    fetch_data,
    invite_of_named_run,
    saved_membership,
)
from peer.membership.saved_membership import SavedMembership, remember_host_heard, remember_peers, save_membership
from protocol.errors import CallTimeout, ConfigError, PotluckError, RefusedError, UnreachableError, VersionError
from protocol.host.calls import AdmitReply
from protocol.identity.credential import BACKDATE_S, make_ca, make_request, make_tls_key, open_request
from protocol.identity.identity import Identity
from protocol.identity.invite import Invite
from protocol.identity.names import peer_name
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId, Root, RunId
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import encode_body
from protocol.rounds.schedule.asking_order import asking_order
from protocol.run.manifest import RunManifest, default_run_toml, parse_run_config, sign_manifest
from protocol.tensors.model_config import model_schema
from protocol.tensors.tensor_schema import ChunkGrid
from tests.protocol.run.made_manifest import manifest_of
from tests.virtual import VirtualClock

CONFIG = LlamaConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=32, context_tokens=16)
SCHEMA = model_schema(CONFIG)
GRID = ChunkGrid(SCHEMA.num_elements, 500)
MADE_S = 1_700_000_000.0
INVITE = Invite(
    coordinator_addresses=("127.0.0.1:7000",),
    ca_certificate_der=make_ca(b"c" * 32, now_unix_s=MADE_S).certificate_der,
    run_id=RunId(b"r" * 32),
    secret=b"s" * 16,
    expires_unix_s=int(MADE_S) + 3600,
    bootstrap=(),
    max_uses=1,
)
HOST, OURSELVES, OTHER, LATE = PeerId("host"), PeerId("ourselves"), PeerId("other"), PeerId("late")
SHARDS = (bytes(range(256)) * 8, bytes(range(255, -1, -1)) * 4)
DATASET = DatasetManifest(
    source="text",
    num_documents=2,
    licence="none",
    shards=[
        ShardEntry(sha256=sha256(SHARDS[0]).hexdigest(), num_tokens=len(SHARDS[0]) // 2, split="train"),
        ShardEntry(sha256=sha256(SHARDS[1]).hexdigest(), num_tokens=len(SHARDS[1]) // 2, split="heldout"),
    ],
)


class FakeClient:
    """A coordinator whose clock is so far ahead, or that fails."""

    def __init__(self, answer: float | Exception) -> None:
        self.answer = answer

    async def clock_ahead_s(self) -> float:
        await trio.lowlevel.checkpoint()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def _start(fingerprint: bytes, root: Root) -> bytes:
    return encode_body(StartRecord(bytes(32), (StartUnit(SCHEMA.unit, fingerprint, root),), (PeerId("p"),), 100, 0))


def test_a_start_with_our_own_tensors_and_first_state_is_joined() -> None:
    root = start_root(SCHEMA, GRID, 1)
    check_start(_start(SCHEMA.fingerprint(), root), SCHEMA, root)


def test_a_run_of_another_schema_is_refused_with_the_release_to_install() -> None:
    root = start_root(SCHEMA, GRID, 1)
    with pytest.raises(VersionError, match=r"other tensors.*same release"):
        check_start(_start(bytes(32), root), SCHEMA, root)


def test_a_run_that_begins_from_other_bytes_is_refused() -> None:
    with pytest.raises(VersionError, match="first state"):
        check_start(_start(SCHEMA.fingerprint(), start_root(SCHEMA, GRID, 2)), SCHEMA, start_root(SCHEMA, GRID, 1))


def test_a_fresh_invite_passes_until_it_expires() -> None:
    check_invite(INVITE, MADE_S)
    check_invite(INVITE, MADE_S + 3600)
    with pytest.raises(RefusedError, match=r"expired 10 minutes ago.*new invite"):
        check_invite(INVITE, MADE_S + 3600 + 600)


def test_a_clock_from_before_the_run_was_made_is_called_wrong_and_not_the_certificate() -> None:
    check_invite(INVITE, MADE_S - BACKDATE_S)
    with pytest.raises(RefusedError, match=r"clock is at least 5 minutes behind.*set the clock"):
        check_invite(INVITE, MADE_S - BACKDATE_S - 300)


def test_an_invite_without_a_certificate_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"CA certificate that cannot be read.*new one"):
        check_invite(replace(INVITE, ca_certificate_der=b"no certificate"), MADE_S)


def test_without_an_invite_and_without_an_earlier_run_the_user_is_asked_for_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no invite, and no run joined from .*potluck join potluck1:"):
        invite_of_named_run(tmp_path)


@pytest.mark.parametrize(("ahead_s", "side"), [(600.0, "600 s behind"), (-600.0, "600 s ahead of")])
async def test_a_clock_that_went_wrong_since_the_last_session_is_told(ahead_s: float, side: str) -> None:
    with pytest.raises(RefusedError, match=rf"clock is {side} the host's.*set the clock"):
        await check_clock_again(FakeClient(ahead_s))  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [0.0, 119.0, -119.0, UnreachableError("away"), RefusedError("somebody else")])
async def test_a_clock_within_bounds_or_a_host_that_is_away_keeps_nobody_out(answer: float | Exception) -> None:
    await check_clock_again(FakeClient(answer))  # type: ignore[arg-type]


async def test_another_version_is_told_to_a_peer_that_comes_back() -> None:
    with pytest.raises(VersionError):
        await check_clock_again(FakeClient(VersionError("a coordinator with protocol version 2")))  # type: ignore[arg-type]


async def _everybody(_: PeerId) -> bool:
    return True


def _serving(shards: Mapping[str, bytes]) -> StreamHandler:
    async def read(shard_hash: bytes) -> bytes | None:
        return shards.get(shard_hash.hex())

    return serve_shards(read, _everybody)


def _honest() -> StreamHandler:
    return _serving({sha256(shard).hexdigest(): shard for shard in SHARDS})


def _held(cache: ShardCache) -> tuple[bytes | None, ...]:
    return tuple(cache.read(entry.sha256) for entry in DATASET.shards)


@asynccontextmanager
async def _swarm() -> AsyncIterator[MemorySwarm]:
    async with trio.open_nursery() as nursery:
        yield MemorySwarm(nursery, random.Random(1))
        nursery.cancel_scope.cancel()


FETCHING = "fetching the run's data: 0 B of 2.0 kB, time left: not known yet"


async def test_a_peer_gives_all_data_while_the_host_is_away(tmp_path: Path, autojump_clock: object) -> None:
    cache, reported = ShardCache(tmp_path), list[str]()
    async with _swarm() as swarm:
        swarm.start(OTHER).serve_streams(SHARD_CHANNEL, _honest())
        await fetch_data(swarm.start(OURSELVES), DATASET.files, cache, lambda: (HOST, OTHER), reported.append)
    assert _held(cache) == SHARDS
    assert reported == [
        "fetching the run's data: 0 B of 3.1 kB, time left: not known yet",
        "fetching the run's data: 2.0 kB of 3.1 kB, 0 s to go",
    ]


async def test_the_tokenizer_comes_with_the_shards(tmp_path: Path, autojump_clock: object) -> None:
    file, cache = b"how to read the tokens", ShardCache(tmp_path)
    entry = TokenizerEntry(sha256=sha256(file).hexdigest(), num_bytes=len(file), vocab_size=300, end=0)
    dataset = DATASET.model_copy(update={"tokenizer": entry})
    async with _swarm() as swarm:
        held = {sha256(data).hexdigest(): data for data in (*SHARDS, file)}
        swarm.start(OTHER).serve_streams(SHARD_CHANNEL, _serving(held))
        await fetch_data(swarm.start(OURSELVES), dataset.files, cache, lambda: (OTHER,), lambda _: None)
    assert cache.read(entry.sha256) == file


async def test_an_expert_that_is_taken_up_later_brings_its_own_shards_then_and_no_others(
    tmp_path: Path, autojump_clock: object
) -> None:
    parts = (*SHARDS, b"weights of all", b"of 1, more")
    entries = [
        ShardEntry(sha256=sha256(data).hexdigest(), num_tokens=len(data) // 2, split=split, expert=expert)
        for data, split, expert in zip(parts, ("train", "train", "start", "heldout"), (0, 1, None, 1), strict=True)
    ]
    router = RouterEntry(sha256=sha256(b"router").hexdigest(), num_bytes=6, root="0" * 64, num_experts=2)
    dataset, cache, asked = DATASET.model_copy(update={"shards": entries, "router": router}), ShardCache(tmp_path), []
    held = {sha256(data).hexdigest(): data for data in (*parts, b"router")}

    async def give(shard_hash: bytes) -> bytes | None:
        asked.append(held[shard_hash.hex()])
        return held[shard_hash.hex()]

    async with _swarm() as swarm:
        swarm.start(OTHER).serve_streams(SHARD_CHANNEL, serve_shards(give, _everybody))
        network = swarm.start(OURSELVES)
        for experts, brought in (((), [parts[2], b"router"]), ((0,), [parts[0]]), ((0, 1), [parts[1], parts[3]])):
            asked.clear()
            await fetch_data(network, dataset.files_of(experts), cache, lambda: (OTHER,), lambda _: None)
            assert asked == brought


async def test_a_donor_that_sends_other_bytes_is_replaced_by_an_honest_one(
    tmp_path: Path, autojump_clock: object
) -> None:
    asked = list[str]()

    async def lie(shard_hash: bytes) -> bytes | None:
        asked.append(shard_hash.hex())
        return next(bytes(entry.num_bytes) for entry in DATASET.shards if entry.sha256 == shard_hash.hex())

    cache = ShardCache(tmp_path)
    async with _swarm() as swarm:
        swarm.start(HOST).serve_streams(SHARD_CHANNEL, serve_shards(lie, _everybody))
        swarm.start(OTHER).serve_streams(SHARD_CHANNEL, _honest())
        await fetch_data(swarm.start(OURSELVES), DATASET.files, cache, lambda: (HOST, OTHER), lambda _: None)
    assert asked == [DATASET.shards[0].sha256], "it is asked for no more while another gives all"
    assert _held(cache) == SHARDS


async def test_each_peer_asks_the_donors_of_data_in_an_order_of_its_own_for_each_file_and_the_host_last(
    tmp_path: Path, autojump_clock: object
) -> None:
    donors, asked = [PeerId(f"donor {number}") for number in range(5)], dict[str, list[PeerId]]()

    def lacking(donor: PeerId) -> StreamHandler:
        async def read(shard_hash: bytes) -> bytes | None:
            asked.setdefault(shard_hash.hex(), []).append(donor)
            return None

        return serve_shards(read, _everybody)

    orders = set()
    async with _swarm() as swarm:
        for donor in donors:
            swarm.start(donor).serve_streams(SHARD_CHANNEL, lacking(donor))
        swarm.start(HOST).serve_streams(SHARD_CHANNEL, _honest())
        for number in range(4):
            asked.clear()
            me, cache = PeerId(f"newcomer {number}"), ShardCache(tmp_path / str(number))
            for entry in DATASET.files:  # one at a time: who lacked a file is asked last for the next one
                await fetch_data(swarm.start(me), [entry], cache, lambda: (*donors, HOST), lambda _: None)
                swarm.kill(me)
                order = asking_order(me, donors, bytes.fromhex(entry.sha256))
                assert asked[entry.sha256] == list(order)
                orders.add(order)
            assert _held(cache) == SHARDS
    assert len(orders) > 2


async def test_a_donor_that_is_listed_late_is_asked(tmp_path: Path, autojump_clock: object) -> None:
    asked_in_vain = trio.Event()

    async def have_nothing(_: bytes) -> bytes | None:
        asked_in_vain.set()
        return None

    cache, donors = ShardCache(tmp_path), [HOST, OTHER]
    async with _swarm() as swarm, trio.open_nursery() as nursery:
        swarm.start(OTHER).serve_streams(SHARD_CHANNEL, serve_shards(have_nothing, _everybody))
        swarm.start(LATE).serve_streams(SHARD_CHANNEL, _honest())
        network = swarm.start(OURSELVES)
        nursery.start_soon(fetch_data, network, DATASET.files, cache, lambda: tuple(donors), lambda _: None)
        await asked_in_vain.wait()
        assert _held(cache) == (None, None)
        donors.append(LATE)
    assert _held(cache) == SHARDS


async def test_data_that_is_here_is_not_asked_for(tmp_path: Path, autojump_clock: object) -> None:
    cache, reported = ShardCache(tmp_path), list[str]()
    for entry, shard in zip(DATASET.shards, SHARDS, strict=True):
        cache.put(entry, shard)
    async with _swarm() as swarm:
        await fetch_data(swarm.start(OURSELVES), DATASET.files, cache, lambda: (), reported.append)
    assert reported == []


async def test_data_that_nobody_has_is_one_clear_error_in_the_end(tmp_path: Path, autojump_clock: object) -> None:
    async with _swarm() as swarm:
        swarm.start(OTHER).serve_streams(SHARD_CHANNEL, _serving({}))
        network, begun_s = swarm.start(OURSELVES), trio.current_time()
        # Caught in here: outside, it would come in a group.
        with pytest.raises(UnreachableError, match=r"nobody gave data shard \w{8}.*one peer that has it"):
            await fetch_data(network, DATASET.files, ShardCache(tmp_path), lambda: (HOST, OTHER), lambda _: None)
        assert trio.current_time() - begun_s == pytest.approx(DATA_WITHIN_S)


async def test_donor_that_does_not_answer_is_shown_within_ten_seconds_and_until_data_comes(
    tmp_path: Path, autojump_clock: object
) -> None:
    reported, shown_at_s, donors = list[str](), list[float](), [HOST]

    def show(text: str) -> None:
        reported.append(text)
        shown_at_s.append(trio.current_time())
        if len(reported) == 2:
            donors.append(LATE)

    async with _swarm() as swarm:
        swarm.start(LATE).serve_streams(SHARD_CHANNEL, _honest())
        network, begun_s = swarm.start(OURSELVES), trio.current_time()
        with structlog.testing.capture_logs() as logs:
            await fetch_data(network, DATASET.files[:1], ShardCache(tmp_path), lambda: tuple(donors), show)
    assert reported[1].startswith(f"{FETCHING}; nothing has come for 8 s or more: ")
    assert f": {peer_name(HOST)} does not answer; tries on" in reported[1], "in no words of the network program"
    assert shown_at_s[1] - begun_s <= 10.0
    assert reported[2:] == [FETCHING]
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["no_data_comes"]


class SilentClient(FakeClient):
    """A coordinator behind a router that does not forward its port."""

    async def clock_ahead_s(self) -> float:
        await trio.sleep(20.0)
        return await super().clock_ahead_s()


async def test_host_that_is_silent_at_admission_is_named_within_ten_seconds(
    tmp_path: Path, autojump_clock: object
) -> None:
    client = SilentClient(CallTimeout("no answer", ""))
    with structlog.testing.capture_logs() as logs:
        with trio.move_on_after(10.0):
            await admit(client, INVITE, Identity(b"a" * 32), tmp_path, VirtualClock(MADE_S))  # type: ignore[arg-type]
        assert [(entry["event"], entry["tried"]) for entry in logs] == [
            ("host_does_not_answer_yet", ["127.0.0.1:7000"])
        ]
        with pytest.raises(CallTimeout, match="no answer"):
            await admit(client, INVITE, Identity(b"a" * 32), tmp_path, VirtualClock(MADE_S))  # type: ignore[arg-type]


# --- coming back with a credential that has ended -------------------------------------------------------------------------------

ALICE, HOST_KEY = Identity(b"a" * 32), Identity(b"h" * 32)
AUTHORITY = make_ca(b"c" * 32, now_unix_s=MADE_S)
DAY_S = 86400.0


def _manifest() -> RunManifest:
    return manifest_of(
        parse_run_config(default_run_toml()),
        dataset_id=DATASET.dataset_id,
        host_public_key=HOST_KEY.public_key.hex(),
        ca_certificate_sha256=sha256(AUTHORITY.certificate_der).hexdigest(),
    )


RUN = _manifest().run_id


def _issued(begin_s: float, days: int) -> bytes:
    request = make_request(ALICE, RUN, make_tls_key(), begin_s)
    opened = open_request(request, verifier=Ed25519Verifier(), run_id=RUN, now_unix_s=begin_s)
    return AUTHORITY.issue(opened, RUN, now_unix_s=begin_s, days=days, serial=1)


def _save(folder: Path, credential: bytes) -> None:
    saved = SavedMembership.model_construct(
        addresses=("127.0.0.1:1",),
        ca_certificate_der=AUTHORITY.certificate_der,
        tls_key_pem=b"key",
        credential=credential,
        manifest=sign_manifest(_manifest(), HOST_KEY),
        dataset=DATASET.canonical_bytes(),
        start_record=b"start",
        coordinator_peer_id=HOST_KEY.peer_id,
        bootstrap=(),
    )
    save_membership(folder, saved)


@pytest.mark.parametrize(
    ("heard_days", "expected"),
    [(None, None), (0.5, True), (1.5, None)],
    ids=["never heard", "heard while it was good", "heard after it had ended"],
)
def test_an_ended_credential_is_taken_up_only_if_it_was_good_at_the_hosts_last_word(
    tmp_path: Path, heard_days: float | None, expected: bool | None
) -> None:
    _save(tmp_path, _issued(MADE_S, days=1))
    if heard_days is not None:
        remember_host_heard(tmp_path, MADE_S + heard_days * DAY_S)
    found = saved_membership(tmp_path, ALICE, RUN, MADE_S + 10 * DAY_S)
    assert (found.has_ended if found is not None else None) is expected


def test_a_good_credential_needs_no_word_of_the_host_and_anothers_is_never_taken_up(tmp_path: Path) -> None:
    _save(tmp_path, _issued(MADE_S, days=30))
    found = saved_membership(tmp_path, ALICE, RUN, MADE_S + 10 * DAY_S)
    assert found is not None
    assert not found.has_ended
    remember_host_heard(tmp_path, MADE_S + DAY_S)
    assert saved_membership(tmp_path, Identity(b"b" * 32), RUN, MADE_S + 10 * DAY_S) is None


class FakeHost:
    """A coordinator that admits Alice again and tells `start` as the run's start record, or fails."""

    def __init__(self, clock: VirtualClock, error: PotluckError | None, start: bytes) -> None:
        self._clock = clock
        self._error = error
        self._start = start

    async def clock_ahead_s(self) -> float:
        await trio.lowlevel.checkpoint()
        if self._error is not None:
            raise self._error
        return 0.0

    async def admit(self, secret: bytes, credential_request: bytes) -> AdmitReply:
        manifest = sign_manifest(_manifest(), HOST_KEY)
        credential = _issued(self._clock.unix_s(), days=30)
        return AdmitReply(credential, manifest, DATASET.canonical_bytes(), self._start, HOST_KEY.peer_id, ())


async def _come_back(
    folder: Path, error: PotluckError | None, *, now_s: float, start: bytes = b"start"
) -> tuple[Membership, bool]:
    clock = VirtualClock(now_s)
    saved = saved_membership(folder, ALICE, RUN, now_s)
    assert saved is not None
    invite = replace(INVITE, run_id=RUN, secret=b"", ca_certificate_der=AUTHORITY.certificate_der)
    return await come_back(saved, FakeHost(clock, error, start), invite, ALICE, folder, clock)  # type: ignore[arg-type]


AWAY = UnreachableError("nobody answers", "a coordinator")


async def test_who_comes_back_after_its_credential_ended_is_admitted_again(
    tmp_path: Path, autojump_clock: object
) -> None:
    _save(tmp_path, _issued(MADE_S, days=1))
    remember_host_heard(tmp_path, MADE_S)
    membership, is_host_there = await _come_back(tmp_path, None, now_s=MADE_S + 10 * DAY_S)
    assert (membership.has_ended, is_host_there) == (False, True)
    again = saved_membership(tmp_path, ALICE, RUN, MADE_S + 10 * DAY_S)
    assert again is not None
    assert not again.has_ended


@pytest.mark.parametrize("start", [b"start", b""], ids=["told", "forgotten by the host"])
async def test_who_is_admitted_again_keeps_the_ways_to_others_and_the_start_of_the_run(
    tmp_path: Path, autojump_clock: object, start: bytes
) -> None:
    ways = ("/ip4/10.0.0.7/tcp/1/p2p/somebody",)
    _save(tmp_path, _issued(MADE_S, days=1))
    remember_host_heard(tmp_path, MADE_S)
    remember_peers(tmp_path, ways)
    membership, _ = await _come_back(tmp_path, None, now_s=MADE_S + 10 * DAY_S, start=start)
    again = saved_membership(tmp_path, ALICE, RUN, MADE_S + 10 * DAY_S)
    assert again is not None
    assert not again.has_ended
    assert membership.saved.ways_in == again.saved.ways_in == ways
    assert membership.saved.start_record == again.saved.start_record == b"start"


@pytest.mark.parametrize("away", [AWAY, CallTimeout("no answer", "one")])
async def test_with_the_host_away_it_goes_on_with_the_credential_that_has_ended(
    tmp_path: Path, autojump_clock: object, away: PotluckError
) -> None:
    _save(tmp_path, _issued(MADE_S, days=1))
    remember_host_heard(tmp_path, MADE_S)
    membership, is_host_there = await _come_back(tmp_path, away, now_s=MADE_S + 10 * DAY_S)
    assert (membership.has_ended, is_host_there) == (True, False)


async def test_a_host_that_says_no_to_an_ended_credential_is_obeyed(tmp_path: Path, autojump_clock: object) -> None:
    _save(tmp_path, _issued(MADE_S, days=1))
    remember_host_heard(tmp_path, MADE_S)
    with pytest.raises(RefusedError, match="banned"):
        await _come_back(tmp_path, RefusedError("peer is banned"), now_s=MADE_S + 10 * DAY_S)


@pytest.mark.parametrize(("error", "is_there"), [(None, True), (AWAY, False)])
async def test_with_a_good_credential_clocks_are_compared_and_nobody_is_asked_for_another(
    tmp_path: Path, autojump_clock: object, error: PotluckError | None, is_there: bool
) -> None:
    credential = _issued(MADE_S, days=30)
    _save(tmp_path, credential)
    membership, is_host_there = await _come_back(tmp_path, error, now_s=MADE_S + DAY_S)
    assert (membership.saved.credential, is_host_there) == (credential, is_there)
