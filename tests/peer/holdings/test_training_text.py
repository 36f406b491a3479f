"""The text that a peer reads: what the host signed is fetched, checked and read from its round on; anything else changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import pytest
import trio
import trio.testing

from averaging.data.packing.document_routing import Routing, route_documents, route_with
from averaging.data.packing.packing import Packing, pack
from averaging.data.packing.routing_sample import routing_sample
from averaging.data.shards import DatasetManifest, HashedFile, ShardCache
from averaging.data.sources.texts import Text
from averaging.data.tokenizer import ByteTokenizer
from averaging.network.seams.offload import InlineOffload
from peer.holdings.training_text import FILE_NAME, TRY_AGAIN_S, OwnText
from peer.holdings.training_text_core import KEPT_ROUNDS
from protocol.errors import ConfigError, UnreachableError
from protocol.host.reassignment import Reassignment, seal_reassignment
from protocol.identity.identity import Identity
from protocol.identity.revocation import join_entries
from protocol.ids import Root
from protocol.run.manifest import RunManifest, parse_run_config
from tests.averaging.data.packing.test_document_routing import CODE, PROSE
from tests.protocol.run.test_experts_section import EXPERTS, expert_toml

HOST, STRANGER = Identity(b"h" * 32), Identity(b"s" * 32)
TEXTS = [
    Text(data * 40, "heldout" if n % 8 == 7 else "train")
    for n, pair in enumerate(zip(CODE, PROSE, strict=True))
    for data in pair
]
HELD = (1,)


def _packed(folder: Path, routing: Routing, texts: Sequence[Text] = TEXTS, num_windows: int = 16) -> DatasetManifest:
    sample = routing_sample(lambda: TEXTS, ByteTokenizer(), 65, num_windows)
    return pack(texts, ByteTokenizer(), folder, Packing(65536, "text", "none", routing=routing, sample=sample))


@dataclass
class _World:
    """A peer's folders, and a host that has packed its text a second time, with the experts' documents exchanged."""

    folder: Path
    manifest: RunManifest
    first: DatasetManifest
    anew: DatasetManifest
    fetched: list[str]
    is_away: bool = False

    @property
    def cache(self) -> ShardCache:
        return ShardCache(self.folder / "peer")

    def text(self) -> OwnText:
        return OwnText(self.folder, self.manifest, self.first, self.cache, InlineOffload())

    async def fetch(self, files: Sequence[HashedFile]) -> None:
        """From the host, each checked."""
        for file in files:
            if self.cache.has(file):
                continue
            if self.is_away:
                raise UnreachableError("nobody gave a shard", "one peer", "try again later")
            self.fetched.append(file.sha256)
            self.cache.put(file, (self.folder / "host" / file.sha256).read_bytes())

    def sealed(self, dataset: DatasetManifest | None = None, host: Identity = HOST, **changes: object) -> bytes:
        """An entry about a data set, which lies with the host."""
        packed = dataset or self.anew
        data = packed.canonical_bytes()
        name = sha256(data).hexdigest()
        (self.folder / "host" / name).write_bytes(data)
        root = Root(bytes.fromhex(packed.router.root if packed.router else "00" * 32))
        entry = Reassignment(1, 6, packed.dataset_id, root, name, len(data), 1_700_000_000)
        return seal_reassignment(host, self.manifest.run_id, replace(entry, **changes))  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path) -> _World:
    routing = route_documents(lambda: TEXTS, 2)
    first = _packed(tmp_path / "host", routing)
    exchanged = replace(routing.router, centroids_XF=routing.router.centroids_XF[::-1])
    anew = _packed(tmp_path / "host", route_with(exchanged, lambda: TEXTS))
    manifest = RunManifest(
        config=parse_run_config(expert_toml(section=EXPERTS + "reassign_every_rounds = 2\n")),
        dataset_id=first.dataset_id,
        dataset_tokens=first.num_tokens("train"),
        heldout_tokens=first.num_tokens("heldout"),
        zlib_bits_per_byte=2.0,
        pairs_nats_per_byte=2.4,
        host_public_key=HOST.public_key.hex(),
        ca_certificate_sha256="cd" * 32,
    )
    return _World(tmp_path, manifest, first, anew, [])


class _Reads:
    """A training process that notes what it is told to read."""

    def __init__(self) -> None:
        self.datasets: list[DatasetManifest] = []

    async def __call__(self, dataset: DatasetManifest) -> None:
        self.datasets.append(dataset)


@asynccontextmanager
async def _training(world: _World, text: OwnText) -> AsyncIterator[None]:
    """A peer that holds expert 1, has what it reads, and is told things while it trains."""
    await text.begin(world.fetch, HELD)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(text.keep, world.fetch, HELD)
        yield
        nursery.cancel_scope.cancel()


async def _taken(text: OwnText, sealed: bytes) -> None:
    text.take(sealed)
    await trio.testing.wait_all_tasks_blocked()


async def test_what_is_signed_is_fetched_while_training_goes_on_and_read_from_its_round_on(
    world: _World, autojump_clock: object
) -> None:
    text, read = world.text(), _Reads()
    async with _training(world, text):
        first_files = {path.name for path in (world.folder / "peer").iterdir()}
        await _taken(text, world.sealed())
        assert [await text.follow(index, read) for index in (4, 5)] == [0, 0]
        assert (read.datasets, text.dataset) == ([], world.first)
        assert [await text.follow(index, read) for index in (6, 7)] == [6, 6]
        assert (read.datasets, text.dataset, text.from_round) == ([world.anew], world.anew, 6)
        assert first_files <= {path.name for path in (world.folder / "peer").iterdir()}, "the trunk may go back"
        assert await text.follow(6 + KEPT_ROUNDS, read) == 6
    kept = {path.name for path in (world.folder / "peer").iterdir()}
    assert {file.sha256 for file in world.anew.files_of(HELD)} <= kept
    assert not kept & (first_files - {file.sha256 for file in world.anew.files}), "what is not read any more is gone"
    other = {entry.sha256 for entry in world.anew.part("train", 0)} - first_files
    assert not other & set(world.fetched), "the text of its own expert alone"


async def test_a_trunk_that_goes_over_to_a_shorter_lineage_reads_what_its_round_read(
    world: _World, autojump_clock: object
) -> None:
    text, read = world.text(), _Reads()
    async with _training(world, text):
        await _taken(text, world.sealed())
        found = [await text.follow(index, read) for index in (5, 6, 8, 4, 5, 7)]
        assert found == [0, 6, 6, 0, 0, 6]
        assert read.datasets == [world.anew, world.first, world.anew]
        later = world.sealed(world.first, signed_unix_s=1_700_000_009, number=2, from_round=9)
        await _taken(text, later)
        assert [await text.follow(index, read) for index in (9, 8, 9, 9 + KEPT_ROUNDS, 8)] == [9, 6, 9, 9, 9]
        assert read.datasets[3:] == [world.first, world.anew, world.first]
    kept = {path.name for path in (world.folder / "peer").iterdir()}
    assert world.anew.router is not None
    assert world.anew.router.sha256 not in kept, "too far back"


async def test_a_restart_reads_the_same_without_the_host(world: _World, autojump_clock: object) -> None:
    text = world.text()
    async with _training(world, text):
        await _taken(text, world.sealed())
        await text.follow(6, _Reads())
    world.is_away, world.fetched[:] = True, []
    again = world.text()
    await again.restore()
    await again.begin(world.fetch, HELD)
    assert (again.dataset, again.from_round, again.heard_unix_s) == (world.anew, 6, 1_700_000_000)
    assert again.heard == world.sealed(), "for a host that has lost it"
    assert world.fetched == []


async def _restarted(world: _World) -> OwnText:
    """A process that begins anew while the host is away."""
    world.is_away, world.fetched[:] = True, []
    again = world.text()
    await again.restore()
    await again.begin(world.fetch, HELD)
    return again


async def test_after_a_restart_a_trunk_that_goes_back_still_reads_what_its_round_read_and_that_is_deleted_in_time(
    world: _World, autojump_clock: object
) -> None:
    text = world.text()
    async with _training(world, text):
        first_files = {path.name for path in (world.folder / "peer").iterdir()}
        await _taken(text, world.sealed())
        await text.follow(6, _Reads())
    again, read = await _restarted(world), _Reads()
    assert [await again.follow(index, read) for index in (7, 5, 6)] == [6, 0, 6]
    assert read.datasets == [world.first, world.anew]
    await again.follow(6 + KEPT_ROUNDS, read)
    kept = {path.name for path in (world.folder / "peer").iterdir()}
    assert not kept & (first_files - {file.sha256 for file in world.anew.files}), "what is not read any more is gone"
    third = await _restarted(world)
    assert [await third.follow(index, read) for index in (5, 30)] == [6, 6]
    assert world.fetched == []


async def test_a_restart_before_the_round_of_what_is_here_reads_the_text_before_until_then(
    world: _World, autojump_clock: object
) -> None:
    text = world.text()
    async with _training(world, text):
        await _taken(text, world.sealed())
        assert await text.follow(4, _Reads()) == 0
    again, read = await _restarted(world), _Reads()
    assert [await again.follow(index, read) for index in (4, 5, 6)] == [0, 0, 6]
    assert read.datasets == [world.first, world.anew]


async def test_after_a_switch_and_a_later_one_a_restart_knows_both_entries(
    world: _World, autojump_clock: object
) -> None:
    text = world.text()
    async with _training(world, text):
        await _taken(text, world.sealed())
        await text.follow(6, _Reads())
        await _taken(text, world.sealed(world.first, signed_unix_s=1_700_000_009, number=2, from_round=9))
        await text.follow(9, _Reads())
    again, read = await _restarted(world), _Reads()
    assert [await again.follow(index, read) for index in (9, 8, 9)] == [9, 6, 9]
    assert read.datasets == [world.anew, world.first]
    assert again.heard_unix_s == 1_700_000_009


async def test_a_disk_that_refuses_to_forget_costs_nothing_but_room(
    world: _World, autojump_clock: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    text, read = world.text(), _Reads()
    async with _training(world, text):
        await _taken(text, world.sealed())
        await text.follow(6, read)
        monkeypatch.setattr(ShardCache, "drop", refuses)
        assert await text.follow(6 + KEPT_ROUNDS, read) == 6
    assert "text_not_deleted" in capsys.readouterr().out


async def test_who_is_restarted_while_nobody_has_what_was_signed_last_goes_on_with_what_is_here(
    world: _World, autojump_clock: object
) -> None:
    text = world.text()
    async with _training(world, text):
        await _taken(text, world.sealed())
        await text.follow(6, _Reads())
    world.is_away = True
    again = world.text()
    await again.restore()
    again.take(world.sealed(world.first, signed_unix_s=1_700_000_009, number=2, from_round=9))
    await again.begin(world.fetch, HELD)
    assert (again.dataset, again.from_round) == (world.anew, 6)


async def test_who_comes_later_begins_with_it_and_fetches_nothing_else(world: _World, autojump_clock: object) -> None:
    text = world.text()
    text.take(world.sealed())
    await text.begin(world.fetch, HELD)
    assert text.dataset == world.anew
    assert not {entry.sha256 for entry in world.first.part("train", 1)} & set(world.fetched)


async def test_where_nobody_has_it_yet_it_is_tried_again_and_read_late(world: _World, autojump_clock: object) -> None:
    text, read = world.text(), _Reads()
    async with _training(world, text):
        world.is_away = True
        await _taken(text, world.sealed())
        assert await text.follow(6, read) == 0, "the text is not here"
        world.is_away = False
        await trio.sleep(TRY_AGAIN_S + 1)
        assert await text.follow(9, read) == 6
        assert read.datasets == [world.anew]


async def test_a_newer_entry_ends_the_fetching_of_one_that_nobody_may_have_any_more(
    world: _World, autojump_clock: object
) -> None:
    text, read = world.text(), _Reads()
    newer = world.sealed(signed_unix_s=1_700_000_009, number=2, from_round=9)

    async def fetch(files: Sequence[HashedFile]) -> None:
        if any(file.sha256 == "ab" * 32 for file in files):
            await trio.sleep_forever()
        await world.fetch(files)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(text.keep, fetch, HELD)
        await _taken(text, world.sealed(manifest_sha256="ab" * 32))
        await _taken(text, newer)
        assert await text.follow(9, read) == 9
        nursery.cancel_scope.cancel()
    assert read.datasets == [world.anew]


async def test_an_entry_that_was_signed_earlier_changes_nothing(world: _World, autojump_clock: object) -> None:
    text, read = world.text(), _Reads()
    async with _training(world, text):
        await _taken(text, world.sealed())
        assert await text.follow(6, read) == 6
        await _taken(text, world.sealed(world.first, signed_unix_s=1_600_000_000))
        assert await text.follow(7, read) == 6
        await _taken(text, world.sealed(world.first, signed_unix_s=1_700_000_009, number=2, from_round=9))
        assert [await text.follow(index, read) for index in (8, 9)] == [6, 9]
    assert read.datasets == [world.anew, world.first]


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        ("signer", "the host did not sign"),
        ("router", "a data set with router"),
        ("data set", "data set"),
        ("sample", "other sample"),
        ("kept documents", "other kept documents"),
        ("too little", "of expert 0 has"),
        ("noise", "cannot be read"),
    ],
)
async def test_what_does_not_match_what_was_signed_is_refused_in_one_line_and_nothing_changes(
    world: _World, autojump_clock: object, capsys: pytest.CaptureFixture[str], harm: str, told: str
) -> None:
    text, read = world.text(), _Reads()
    async with _training(world, text):
        before = {path.name for path in (world.folder / "peer").iterdir()}
        await _taken(text, _harmful(world, harm))
        assert [await text.follow(index, read) for index in (6, 60)] == [0, 0]
        assert (read.datasets, text.dataset) == ([], world.first)
        assert {path.name for path in (world.folder / "peer").iterdir()} == before, "nothing of what was refused stays"
    refusals = [line for line in capsys.readouterr().out.splitlines() if "reassignment_refused" in line]
    assert len(refusals) == 1
    assert told in refusals[0]
    assert not (world.folder / FILE_NAME).exists()


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        ("root", "a router with root .* as the manifest says"),
        ("features", "a router file that begins .*4096.*; expected .*tokens"),
        ("experts", 'a router file that begins .*"experts": 2.*; expected .*"experts": 3'),
        ("too little", "the training text of expert 0 has 0 tokens"),
    ],
)
async def test_a_first_data_set_that_does_not_match_the_manifest_is_refused_in_one_line(
    world: _World, autojump_clock: object, harm: str, told: str
) -> None:
    config, router = world.manifest.config, world.first.router
    assert config.experts is not None
    assert router is not None
    if harm == "root":
        world.first = world.first.model_copy(update={"router": router.model_copy(update={"root": "ab" * 32})})
    elif harm == "too little":
        short = [entry for entry in world.first.shards if entry.split != "train" or entry.expert != 0]
        world.first = world.first.model_copy(update={"shards": short})
    else:
        other = {"features": {"router_features": "embeddings"}, "experts": {"num_experts": 3}}[harm]
        experts = config.experts.model_copy(update=other)
        world.manifest = world.manifest.model_copy(update={"config": config.model_copy(update={"experts": experts})})
    with pytest.raises(ConfigError, match=told) as caught:
        await world.text().begin(world.fetch, HELD)
    assert "\n" not in caught.value.one_line()


def _harmful(world: _World, harm: str) -> bytes:
    routing = route_documents(lambda: TEXTS, 2)
    host = world.folder / "host"
    if harm == "signer":
        return world.sealed(host=STRANGER)
    if harm == "router":
        return world.sealed(router_root=Root(b"?" * 32))
    if harm == "data set":
        return world.sealed(dataset_id="ab" * 32)
    if harm == "sample":
        return world.sealed(_packed(host, routing, num_windows=15))
    if harm == "kept documents":
        texts = [text for number, text in enumerate(TEXTS) if number != 14]  # one that is kept for evaluation
        return world.sealed(_packed(host, route_with(routing.router, lambda: texts), texts))
    if harm == "too little":
        short = [entry for entry in world.anew.shards if entry.split != "train" or entry.expert != 0]
        return world.sealed(world.anew.model_copy(update={"shards": short}))
    name = sha256(b"noise").hexdigest()
    (host / name).write_bytes(b"noise")
    return world.sealed(manifest_sha256=name, manifest_bytes=5)


@pytest.mark.parametrize(
    "damage", [lambda sealed: join_entries([sealed[:-1] + b"?"]), lambda sealed: join_entries([sealed])[:-1]]
)
async def test_a_kept_entry_that_is_damaged_is_said_and_costs_nothing_more(
    world: _World, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
) -> None:
    (world.folder / FILE_NAME).write_bytes(damage(world.sealed()))
    text = world.text()
    await text.restore()
    assert (text.dataset, text.heard_unix_s) == (world.first, 0)
    assert "reassignment_not_read" in capsys.readouterr().out
