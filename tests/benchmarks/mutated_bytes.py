"""Mutated chunks of a state and mutated results of commits: on the wire from one of two holders, and on our own disk."""

from __future__ import annotations

import copy
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from averaging.network.seams.interfaces import Place, Stream
from averaging.rounds.fetching import download
from averaging.rounds.fetching.download import DownloadContext, download_state
from averaging.rounds.fetching.gather_results import Gatherer
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, TransferService, fetch_result, read_request
from averaging.state.partial_download import PartialDownload
from averaging.state.state import state_root
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.errors import PotluckError, StorageError, UnreachableError
from protocol.ids import PeerId, Root, short
from protocol.rounds.messages.requests import FetchHashes, FetchRequest, FetchResult, FetchState
from tests.averaging.rounds.round_world import CODEC, GRID, UNIT, MadeCommit, Party, RoundWorld, apply_whole, open_world
from tests.benchmarks.mutating import Outcome, Reported, heard, mutated, outcome_of
from tests.virtual import InlineOffload

Trial = Callable[["Swarm", random.Random], Awaitable[Reported]]


@dataclass
class _Spoiling:
    """A stream whose first frame gets damaged on its way out."""

    stream: Stream
    spoil: Callable[[bytes], bytes]
    is_first: bool = True

    @property
    def remote(self) -> PeerId:
        return self.stream.remote

    async def receive_frame(self) -> bytes | None:
        return await self.stream.receive_frame()

    async def receive_view(self, place: Place | None = None) -> memoryview | None:
        return await self.stream.receive_view(place)

    def count_as(self, unit: str, codec: str) -> None:
        self.stream.count_as(unit, codec)

    async def send_frame(self, data: bytes | memoryview, head: bytes = b"") -> None:
        frame = b"".join((head, data))
        await self.stream.send_frame(self.spoil(frame) if self.is_first else frame)
        self.is_first = False

    async def aclose(self) -> None:
        await self.stream.aclose()


@dataclass
class Swarm:
    """Two holders of everything, and one that has nothing yet; the liar's answers to some requests are mutated once."""

    world: RoundWorld
    made: list[MadeCommit]
    disks: dict[PeerId, MemoryDisk] = field(default_factory=dict)

    @property
    def holders(self) -> list[Party]:
        return self.world.parties[:2]

    @property
    def me(self) -> Party:
        return self.world.parties[2]

    @property
    def root(self) -> Root:
        return self.holders[0].chain.root

    def empty_me(self) -> Party:
        """The one that asks, with an empty disk."""
        self.me.disk = MemoryDisk()
        self.me.boot()
        return self.me

    async def me_at_head(self) -> Party:
        """The one that asks, with the disk of a holder."""
        party = self.empty_me()
        party.disk.files = dict(self.holders[0].disk.files)
        party.disk.logs = copy.deepcopy(self.holders[0].disk.logs)
        return party

    def pair(self, chance: random.Random) -> tuple[Party, Party]:
        """A liar and an honest holder."""
        liar, honest = chance.sample(self.holders, 2)
        honest.serve_fetches()
        return liar, honest

    def lie(self, liar: Party, chance: random.Random, is_meant: Callable[[FetchRequest], bool]) -> list[str]:
        """One answer to such a request will be mutated; the list tells how, once it was."""
        hows: list[str] = []
        service = TransferService(UNIT, liar.log, liar.generations, GRID, lambda known: liar.chain.line.after(known))

        def spoil(frame: bytes) -> bytes:
            changed, how = mutated(frame, chance)
            hows.append(how)
            return changed

        async def serve(peer: PeerId, stream: Stream) -> None:
            request = await read_request(stream)
            is_lie = is_meant(request) and not hows
            answered: Stream = _Spoiling(stream, spoil) if is_lie else stream
            await service.serve(peer, request, answered)

        liar.network.serve_streams(FETCH_CHANNEL, serve)
        return hows

    async def download(self, *donors: Party) -> Root:
        """The root of the state that these donors give."""
        tools = DownloadContext(
            self.me.network, InlineOffload(), UNIT, GRID, PartialDownload(MemoryStorage(self.me.disk), GRID)
        )
        wanted = {self.made[-1].link.commit: self.root}
        state = await download_state(tools, [donor.peer for donor in donors], wanted)
        return state_root(state, GRID)


@asynccontextmanager
async def open_swarm() -> AsyncIterator[Swarm]:
    """A swarm of three commits, and downloads of a few chunks at a time."""
    with patch.object(download, "STRIPE_BYTES", 1):
        async with open_world(3) as world:
            made = world.commits(3)
            for party in world.parties[:2]:
                for commit in made:
                    await party.apply(commit)
            yield Swarm(world, made)


# --- chunks of a state ------------------------------------------------------------------------------------------------------------


def _is_chunk(request: FetchRequest) -> bool:
    return isinstance(request, FetchState) and request.stop_chunk > 0


def _is_offer(request: FetchRequest) -> bool:
    return isinstance(request, FetchState) and request.stop_chunk == 0


def _is_hashes(request: FetchRequest) -> bool:
    return isinstance(request, FetchHashes)


async def chunk_beside_honest(swarm: Swarm, chance: random.Random) -> Reported:
    """A donor that lies beside one that does not: the right state comes, the liar is named and asked nothing more."""
    swarm.empty_me()
    liar, honest = swarm.pair(chance)
    hows = swarm.lie(liar, chance, _is_chunk)
    with heard("stripe_not_fetched") as reasons:
        root = await swarm.download(liar, honest)
    is_right = root == swarm.root and bool(hows)
    return hows[0] if hows else "", "replaced" if is_right else "missed", reasons


async def offer_beside_honest(swarm: Swarm, chance: random.Random) -> Reported:
    """The same with the offer, or the hashes. An offer of another state is none of this one: nothing is to be said."""
    swarm.empty_me()
    liar, honest = swarm.pair(chance)
    hows = swarm.lie(liar, chance, chance.choice((_is_offer, _is_hashes)))
    with heard("hashes_not_fetched") as reasons:
        root = await swarm.download(liar, honest)
    # who is asked for hashes second is not asked where the first one's were good
    return hows[0] if hows else "not asked", "replaced" if root == swarm.root else "missed", reasons or None


async def chunk_from_liar_alone(swarm: Swarm, chance: random.Random) -> Reported:
    """Without any other donor there is no state, and the liar is named."""
    swarm.empty_me()
    liar, _ = swarm.pair(chance)
    hows = swarm.lie(liar, chance, chance.choice((_is_chunk, _is_chunk, _is_hashes, _is_offer)))
    try:
        await swarm.download(liar)
    except UnreachableError as error:
        is_named = short(liar.peer) in error.one_line()
        return hows[0], "refused" if is_named else "missed", [error.one_line()]
    return hows[0], "missed", None


async def kept_chunk(swarm: Swarm, chance: random.Random) -> Reported:
    """The kept part of an unfinished download is damaged on our disk: it is fetched again."""
    swarm.empty_me()
    _, honest = swarm.pair(chance)
    await swarm.download(honest)
    files = swarm.me.disk.files
    name = chance.choice(sorted(files))
    good = files[name]
    files[name], how = mutated(good, chance)
    with heard("kept_chunks_damaged") as reasons:
        root = await swarm.download(honest)
    is_right = root == swarm.root and files[name][: len(good)] == good
    return how, "replaced" if is_right else "missed", reasons


# --- results of commits -----------------------------------------------------------------------------------------------------------


def _is_result(request: FetchRequest) -> bool:
    return isinstance(request, FetchResult)


async def result_from_liar(swarm: Swarm, chance: random.Random) -> Reported:
    """Asked for one result, a liar is found out."""
    swarm.empty_me()
    liar, _ = swarm.pair(chance)
    hows = swarm.lie(liar, chance, _is_result)
    record = chance.choice(swarm.made).record
    part = chance.choice(record.slices)
    request = FetchResult(UNIT, record.parent, part.first_chunk, part.stop_chunk, part.result_hash)
    try:
        await fetch_result(swarm.me.network, liar.peer, request, CODEC, GRID)
    except PotluckError as error:
        return hows[0], "refused", [error.one_line()]
    return hows[0], "missed", None


def _gatherer(party: Party) -> Gatherer:
    return Gatherer(party.network, party.chain)


def _holds(party: Party, commit: MadeCommit) -> bool:
    base = commit.record.parent.hex()
    names = [f"results/{base}/{part.result_hash.hex()}" for part in commit.record.slices]
    return [party.disk.files.get(name) for name in names] == list(commit.results)


async def result_beside_honest(swarm: Swarm, chance: random.Random) -> Reported:
    """A round's results are gathered from a liar and another holder."""
    party = swarm.empty_me()
    liar, honest = swarm.pair(chance)
    hows = swarm.lie(liar, chance, _is_result)
    with heard("result_not_fetched") as reasons:
        is_there = await _gatherer(party).gather(swarm.made[0].record, (liar.peer, honest.peer))
    is_right = is_there and bool(hows) and _holds(party, swarm.made[0])
    return hows[0] if hows else "", "replaced" if is_right else "missed", reasons


def _spoil_result(party: Party, commit: MadeCommit, chance: random.Random) -> str:
    part = chance.choice(commit.record.slices)
    name = f"results/{commit.record.parent.hex()}/{part.result_hash.hex()}"
    party.disk.files[name], how = mutated(party.disk.files[name], chance)
    return how


async def result_on_disk_at_start(swarm: Swarm, chance: random.Random) -> Reported:
    """A start that needs a result which is damaged stops before it; it is fetched again, and the head is what it was."""
    party = await swarm.me_at_head()
    _, honest = swarm.pair(chance)
    for name in party.generation_names():
        del party.disk.files[name]
    number = chance.randrange(len(swarm.made))
    how = _spoil_result(party, swarm.made[number], chance)
    with heard("result_damaged") as reasons:
        await party.chain.restore()
    is_unused = party.chain.head.index == number
    for commit in swarm.made[number:]:
        await _gatherer(party).gather(commit.record, (honest.peer,))
        await apply_whole(party.chain, commit.link, commit.certificate)
    is_right = is_unused and party.chain.root == swarm.root
    return how, "replaced" if is_right else "missed", reasons


async def result_on_disk_at_commit(swarm: Swarm, chance: random.Random) -> Reported:
    """Results are damaged between their check and the commit: it is not applied, they are fetched again."""
    party = swarm.empty_me()
    _, honest = swarm.pair(chance)
    commit = swarm.made[0]
    await commit.write_results(party)
    how = _spoil_result(party, commit, chance)
    before = state_root(party.chain.state, GRID)
    lines: list[str] = []
    try:
        await party.chain.apply(commit.link, commit.certificate)
    except StorageError as error:
        lines.append(error.one_line())
    is_unused = bool(lines) and state_root(party.chain.state, GRID) == before and party.chain.head.index == 0
    await _gatherer(party).gather(commit.record, (honest.peer,))
    await apply_whole(party.chain, commit.link, commit.certificate)
    is_right = is_unused and _holds(party, commit)
    return how, "replaced" if is_right else "missed", lines


CHUNKS: tuple[Trial, ...] = (
    chunk_beside_honest,
    chunk_from_liar_alone,
    chunk_beside_honest,
    kept_chunk,
    offer_beside_honest,
)
UPDATES: tuple[Trial, ...] = (
    result_from_liar,
    result_beside_honest,
    result_on_disk_at_start,
    result_on_disk_at_commit,
)


async def measure_bytes(kind: str, trials: Sequence[Trial], number: int, chance: random.Random) -> list[Outcome]:
    """So many mutations, the trials in turn."""
    outcomes: list[Outcome] = []
    async with open_swarm() as swarm:
        for position in range(number):
            trial = trials[position % len(trials)]

            async def run(trial: Trial = trial) -> Reported:
                return await trial(swarm, chance)

            outcomes.append(await outcome_of(f"{kind}: {trial.__name__.replace('_', ' ')}", run))
    return outcomes
