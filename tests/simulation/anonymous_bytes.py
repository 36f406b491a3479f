"""`python -m tests.simulation.anonymous_bytes VALUES FOLDER`: the most anonymous memory of peers in each part of their life.

A process of its own, so that nothing but these peers takes memory. Their parameters lie in shared memory and their files on the disk,
as with real peers; neither counts. Prints one JSON object with bytes for each part: `rounds` and `rest` are of two peers together;
`heal`, `join` and `replay` are what one of them, or another one, takes on top of what all hold then.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import structlog
import torch
import trio
from trio.testing import MockClock

from averaging.arithmetic.spare_memory import SPARE
from averaging.codecs import codec_by_name
from averaging.network.seams.interfaces import HeldoutLosses, KeptPart, ReadAnchors, Snapshot, TrainerProgress
from averaging.rounds.fetching.download import download_state, download_tools
from averaging.rounds.lineage.round_reports import StateHealed
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.state.state import UnitState, absent_state
from averaging.storage.file_storage import FileStorage
from protocol.tensors.tensor_schema import ChunkGrid
from tests.averaging.rounds.round_world import Party, RoundWorld
from tests.averaging.rounds.service_world import PeerSession, live, until
from tests.virtual import InlineOffload

CHUNK_ELEMENTS = 1 << 16
ROUND_TOKENS = 4000
LOOK_EVERY_S = 0.001
ROUNDS = 3
REST_S = 5.0


class MappedTrainer:
    """Trains in virtual time, a little step at a time, on parameters in shared memory."""

    STEP_TOKENS = 100

    def __init__(self, num_values: int, step: float) -> None:
        self._theta_N, self._out_N = _shared(num_values), _shared(num_values)
        self._step = step
        self.is_paused = False
        self._ready = self._trained = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(0.25)
            if self.is_paused:
                continue
            self._theta_N.add_(self._step)
            self._ready += self.STEP_TOKENS
            self._trained += self.STEP_TOKENS

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        self._theta_N.copy_(anchor_N)
        self._ready = 0

    async def snapshot(self) -> Snapshot:
        await trio.lowlevel.checkpoint()
        self._out_N.copy_(self._theta_N)  # as the training process hands it over
        steps = self._ready // self.STEP_TOKENS, self._trained // self.STEP_TOKENS
        return Snapshot(self._out_N, self._ready, *steps, may_overwrite=True)

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        self._theta_N.add_(shift_N)
        self._ready -= credited_tokens

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """Its parameters are never lost."""

    async def evaluate(self, read: ReadAnchors) -> HeldoutLosses:
        return HeldoutLosses((0.0,))

    def progress(self) -> TrainerProgress:
        return TrainerProgress(self._ready, self._trained, 1.0, 400.0, 0, "training", "")


class LateTrainer(MappedTrainer):
    """Takes each shift late, as a training process does whose steps are long. It trains nothing."""

    SHIFT_S = 5.0

    async def shift(
        self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int, kept: Sequence[KeptPart] = ()
    ) -> None:
        await trio.sleep(self.SHIFT_S)
        await super().shift(shift_N, credited_tokens=credited_tokens, schedule_tokens=schedule_tokens, kept=kept)


def _shared(num_values: int) -> torch.Tensor:
    """(num_values,) float32 zeros in memory that is shared, so that its pages are not anonymous."""
    return torch.frombuffer(memoryview(mmap.mmap(-1, 4 * num_values)), dtype=torch.float32)


def anonymous_bytes() -> int:
    """Of this process now."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return (int(resident) - int(shared)) * mmap.PAGESIZE


class Peak:
    """The most memory while a part of the work is done, in bytes by the part's name."""

    def __init__(self) -> None:
        self.most = dict[str, int]()

    @contextmanager
    def of(self, part: str, base: int) -> Iterator[None]:
        """Look often, from a thread; what exceeds `base` bytes counts."""
        ends = threading.Event()
        self.most[part] = 0

        def look() -> None:
            self.most[part] = max(self.most[part], anonymous_bytes() - base)

        def run() -> None:
            while not ends.wait(LOOK_EVERY_S):
                look()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()
            look()


async def measure(num_values: int, folder: Path, peak: Peak) -> None:
    """Two of three peers hold some rounds; one makes its state again; a newcomer joins them; the third replays what it missed."""
    grid, base = ChunkGrid(num_values, CHUNK_ELEMENTS), anonymous_bytes()

    def storage_of(party: Party) -> FileStorage:
        return FileStorage(folder / party.peer, InlineOffload())

    async with trio.open_nursery() as nursery:
        codec = codec_by_name("int8")
        with peak.of("rounds", base):
            world = RoundWorld(nursery, 3, ROUND_TOKENS, grid=grid, codec=codec, storage_of=storage_of)
            trainers = [MappedTrainer(num_values, step) for step in (0.01, -0.02)]
            *parties, away = world.parties
            both = zip(parties, trainers, strict=True)
            lives = [await live(world, nursery, party, trainer) for party, trainer in both]
            await until(lambda: all(life.index >= ROUNDS for life in lives), 600.0)
            for trainer in trainers:
                trainer.is_paused = True
            await trio.sleep(REST_S)
        SPARE.let_go(0.0)
        with peak.of("rest", base):
            await trio.sleep(REST_S)
        with peak.of("heal", anonymous_bytes()):
            await _heal(lives[0])
        SPARE.let_go(0.0)
        with peak.of("join", anonymous_bytes()):
            await _join(world.stranger, lives)
        SPARE.let_go(0.0)
        with peak.of("replay", anonymous_bytes()):
            late = LateTrainer(num_values, 0.0)
            late.is_paused = True

            def make() -> UnitState:
                zeros_N = torch.zeros(num_values)
                return replace(world.genesis, anchor_N=zeros_N, momentum_N=zeros_N.clone())

            absent = absent_state(world.genesis.header, num_values)
            away.chain = UnitChain(
                away.chain.tools, world.start_record, absent, make
            )  # as a real peer, it lends its first state to nobody
            life = await live(world, nursery, away, late)
            await until(lambda: life.index >= lives[0].index and life.service.has_adopted, 600.0)
        nursery.cancel_scope.cancel()


async def _heal(life: PeerSession) -> None:
    """As when the run attests another state than ours."""
    chain = life.service.chain
    chain.is_sound = False
    chain.became_unsound.set()
    await until(lambda: any(isinstance(report, StateHealed) for report in life.reported), 600.0)


async def _join(newcomer: Party, donors: Sequence[PeerSession]) -> None:
    """Its state from both peers' disks, checked, and begun with."""
    chain = donors[0].service.chain
    for life in donors:
        life.party.serve_fetches()  # the newcomer was not admitted, so the service itself would refuse it
    tools = download_tools(newcomer.network, newcomer.chain.tools)
    state = await download_state(tools, [life.party.peer for life in donors], {chain.rooted: chain.root})
    await newcomer.chain.start_from(state, chain.line.certificates)


def main(arguments: Sequence[str]) -> None:
    """See above."""
    num_values, folder = int(arguments[0]), Path(arguments[1])
    torch.set_num_threads(1)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    gc.collect()
    peak = Peak()
    trio.run(measure, num_values, folder, peak, clock=MockClock(autojump_threshold=0))
    print(json.dumps(peak.most))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
