"""The two sides of `year`: what a host, or a peer, keeps of the rounds that go by. Each is a process of its own.

    python -m tests.benchmarks.year_sides host|peer FOLDER NUM_ROUNDS [--signed]

A line of JSON for each reading goes to the standard output. The host is its tracker, ledger, history and archive, on disk. The peer is
the lineage of one unit with its log, votes, contributions, results and generations, on disk. The rounds in between are made
(year_chain.py), not exchanged. The peer then starts again, and a newcomer joins from it over the simulation's network.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import structlog
import trio
import trio.testing

from averaging.network.memory.memory_network import LinkSpeed, MemorySwarm
from averaging.network.seams.interfaces import Storage, Stream
from averaging.rounds.lineage.past.held_milestones import HeldMilestones
from averaging.rounds.lineage.unit_chain import UnitChain, sealed_milestones
from averaging.rounds.lineage.updates import UnitContext
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, TransferService, read_request
from averaging.state.generations import Generations
from averaging.state.log_entries import LoggedContribution
from averaging.state.state import state_root
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileBegun, FileStorage
from coordinator.history.certificate_archive import ARCHIVE_FOLDER
from coordinator.history.milestone_core import due_milestones, is_one_due
from coordinator.history.run_history import HistoryPlace, RunHistory
from coordinator.ledger.ledger import LEDGER_FILE, Ledger, open_ledger
from coordinator.ledger.ledger_writer import LedgerWriter
from coordinator.progress.tracker import RunTracker, TrackedRun
from peer.session.catch_up import catch_up_by_snapshot
from protocol.host.host_statements import NO_STATEMENTS, HostStatements
from protocol.host.reports import HeldoutResult, PeerReport
from protocol.ids import PeerId, Root
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.milestones import seal_milestone
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.messages.start import Milestone, StartRecord
from protocol.rounds.messages.wire import decode_body, encode_certificate, encode_record, genesis_id
from tests.benchmarks.memory_readings import reading
from tests.benchmarks.year_chain import NUM_MEMBERS, TOKENS, UNIT, MadeRun, hashed_run, signed_run
from tests.coordinator.chain_world import CA
from tests.coordinator.host_world import RUN_TOML, tiny_manifest
from tests.virtual import InlineOffload, VirtualClock

READ_EVERY: Final = 500
"""Rounds from one reading of the memory to the next."""

ROUND_S: Final = 600.0
_OTHERS_EVERY: Final = 8
"""Rounds from one report of a member that brings nothing to the next."""


class _CountedFile(FileBegun):
    def __init__(self, path: Path, count: Callable[[int], None]) -> None:
        super().__init__(path, InlineOffload())
        self._count = count

    async def add(self, part: bytes | memoryview) -> None:
        self._count(_disk_bytes(part))
        await super().add(part)


def _disk_bytes(part: bytes | memoryview) -> int:
    """A momentum of zeros becomes a hole of the file, which nothing is written for (averaging/storage/uncached_file.py)."""
    return len(part) if any(part) else 0


class CountingStorage(FileStorage):
    """Counts the bytes that are written, by the first part of a file's name. Holes of a file are none."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, InlineOffload())
        self.written: Counter[str] = Counter()

    async def write_atomic(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        self.written[name.split("/")[0]] += sum(map(_disk_bytes, parts))
        await super().write_atomic(name, parts)

    def begin(self, name: str) -> FileBegun:
        def count(num_bytes: int) -> None:
            self.written[name.split("/")[0]] += num_bytes

        return _CountedFile(self._path(name), count)

    async def append(self, name: str, record: bytes) -> None:
        self.written[name] += len(record)
        await super().append(name, record)

    async def replace_log(self, name: str, records: Iterable[bytes]) -> None:
        everything = list(records)
        self.written[name] += sum(map(len, everything))
        await super().replace_log(name, everything)


class HostSide:
    """The host's tracker over a ledger in a folder. All members report; they bring commits and held-out losses in turn."""

    def __init__(self, run: MadeRun, folder: Path, ledger: Ledger) -> None:
        offload, clock = InlineOffload(), VirtualClock()
        writer = LedgerWriter(ledger, offload)
        manifest = tiny_manifest(CA, RUN_TOML.replace("total_tokens = 1000", "total_tokens = 1_000_000_000_000"))
        units = decode_body(StartRecord, run.start_record).units
        tracked = TrackedRun(manifest, run.run_id, units, run.host, run.verifier, folder / "checkpoints")
        self._run = run
        self.tracker = RunTracker(tracked, writer, clock, offload)
        place = HistoryPlace(run.run_id, run.host, run.verifier, UNIT, folder / ARCHIVE_FOLDER)
        self.tracker.history = self._history = RunHistory(place, writer, offload)

    async def restore(self) -> None:
        """As at a start of the host."""
        await self.tracker.restore()
        await self._history.restore()

    async def hear(self, link: ChainLink, certificate: Certificate) -> None:
        """One round: a member brings the commit, others report now and then, and the host looks at its history."""
        start = HostStatements(start_record=self._run.sealed_start) if link.index == 1 else NO_STATEMENTS
        loss = HeldoutResult(link.commit, link.index, link.total_tokens, 1.0 + 1.0 / link.index)
        report = PeerReport("training", "", UNIT, head=link.commit, index=link.index, tokens_per_s=1.0, loss_nats=2.0)
        peers = self._run.roster
        bringer = peers[link.index % len(peers)]
        brought = replace(report, certificates=(encode_certificate(certificate),), signed=start, heldout=(loss,))
        await self.tracker.report(bringer, brought)
        for peer in peers if not link.index % _OTHERS_EVERY else ():
            await self.tracker.report(peer, report)
        await self.tracker.tick()
        await self._history.look(self.tracker.chain)


async def host_side(run: MadeRun, folder: Path, num_rounds: int) -> None:
    """The host, and then its start."""
    with open_ledger(folder / LEDGER_FILE) as ledger:
        side = HostSide(run, folder, ledger)
        await side.restore()
        head, root = run.start, state_root(run.genesis, run.grid)
        for index in range(1, num_rounds + 1):
            head, certificate = run.commit_on(head, attested_root=root)
            await side.hear(head, certificate)
            await trio.sleep(ROUND_S)
            _tell_memory(index)
        assert side.tracker.chain is not None
        assert side.tracker.chain.head.index == num_rounds, "the host follows every commit"
    del side
    archive = sum(file.stat().st_size for file in (folder / ARCHIVE_FOLDER).glob("*"))
    began_s = time.process_time()
    with open_ledger(folder / LEDGER_FILE) as ledger:
        again = HostSide(run, folder, ledger)
        await again.restore()
        spent_s = time.process_time() - began_s
        assert again.tracker.state.index == num_rounds
    _tell(opened_s=spent_s, ledger_bytes=(folder / LEDGER_FILE).stat().st_size, archive_bytes=archive)


class PeerSide:
    """A peer's lineage over a folder, with the milestones that its host signed."""

    def __init__(self, run: MadeRun, storage: Storage, *, is_large: bool = False) -> None:
        check = SignatureCheck(run.verifier, run.run_id)
        self.run = run
        self.milestones = HeldMilestones(check, run.host.public_key, genesis_id(run.start_record))
        offload, log = InlineOffload(), UnitLog(storage)
        generations = Generations(storage, run.grid, offload)
        tools = UnitContext(run.run_id, UNIT, run.verifier, run.codec, run.grid, offload, log, generations)
        tools = replace(tools, milestones=self.milestones)
        self.chain = UnitChain(
            replace(tools, small_state_bytes=0) if is_large else tools, run.start_record, run.genesis
        )

    async def go_on(self) -> None:
        """One round: contribution, vote, results, commit, and a milestone if one is due."""
        chain, log = self.chain, self.chain.tools.log
        link, certificate = self.run.commit_on(chain.head, attested_root=chain.root)
        base, index, record = chain.head.commit, link.index, link.record
        assert record is not None
        await chain.log_contribution(base, LoggedContribution(Root(sha256(base).digest()), TOKENS, index))
        await log.log_ack(base, record.ballot, certificate.record)
        for part, data in zip(record.slices, self.run.results, strict=True):
            await log.write_result(base, part.result_hash, data)
        whole = verify_certificate(certificate, chain.head, verifier=self.run.verifier, run_id=self.run.run_id)
        await chain.prove(await chain.apply(whole, certificate))
        await chain.keep()
        self._sign_what_is_due()

    def _sign_what_is_due(self) -> None:
        newest = self.milestones.of(UNIT).newest
        newest_index = newest.link.index if newest is not None else 0
        if not is_one_due(newest_index, self.chain.head.index):
            return
        for link in due_milestones(newest_index, self.chain.links):
            content = link.content
            assert isinstance(content, CommitRecord)
            milestone = Milestone(genesis_id(self.run.start_record), encode_record(content), Root(b""))
            self.milestones.take([seal_milestone(self.run.host, self.run.run_id, milestone)], "the host")


async def peer_side(run: MadeRun, folder: Path, num_rounds: int) -> None:
    """The peer, then its start, then a newcomer that joins from it."""
    side = PeerSide(run, FileStorage(folder / "peer", InlineOffload()))
    await side.chain.restore()
    side.chain.forget_tree()
    for index in range(1, num_rounds + 1):
        await side.go_on()
        _tell_memory(index)
    sealed, head = side.milestones.sealed, side.chain.head.commit
    del side
    gc.collect()
    again = PeerSide(run, FileStorage(folder / "peer", InlineOffload()))
    began_s = time.process_time()
    again.milestones.take(sealed, "its own disk")
    await again.chain.restore()
    spent_s = time.process_time() - began_s
    assert again.chain.head.commit == head, "a peer that starts again stands where it stood"
    num_kept = len(again.chain.links) - 1
    joined_s, num_verified = await _join(run, again, folder)
    _tell(started_s=spent_s, num_kept=num_kept, joined_s=joined_s, num_verified=num_verified)


async def _join(run: MadeRun, donor: PeerSide, folder: Path) -> tuple[float, int]:
    """Processor seconds of a newcomer and of its donor, and the number of commits that it verified."""
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1), LinkSpeed(0.01, 10_000_000.0))
        held, newcomer = donor.chain, PeerSide(run, FileStorage(folder / "newcomer", InlineOffload()))
        service = TransferService(
            UNIT, held.tools.log, held.tools.generations, run.grid, held.line.after, lambda: sealed_milestones(held)
        )

        async def serve(peer: PeerId, stream: Stream) -> None:
            await service.serve(peer, await read_request(stream), stream)

        swarm.start(run.roster[0]).serve_streams(FETCH_CHANNEL, serve)
        network = swarm.start(PeerId("newcomer"))
        await newcomer.chain.restore()
        began_s = time.process_time()
        await catch_up_by_snapshot(network, newcomer.chain, [run.roster[0]], lambda _: None)
        spent_s = time.process_time() - began_s
        missing = held.head.index - newcomer.chain.head.index
        assert missing <= 1, f"a newcomer lacks {missing} rounds, and only the root of the head is not attested yet"
        nursery.cancel_scope.cancel()
    return spent_s, len(newcomer.chain.links) - 1


async def written_by(run: MadeRun, folder: Path, num_rounds: int) -> Counter[str]:
    """Bytes that a peer with a large state writes in so many rounds, after as many that are not counted; by the name of the file."""
    storage = CountingStorage(folder)
    side = PeerSide(run, storage, is_large=True)
    await side.chain.restore()
    for index in range(2 * num_rounds):
        if index == num_rounds:
            storage.written.clear()
        await side.go_on()
    return storage.written


def _tell(**values: float) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _tell_memory(index: int) -> None:
    if not index % READ_EVERY:
        gc.collect()
        _tell(index=index, bytes=reading(os.getpid()).anonymous, at_s=time.process_time())


def main(arguments: Sequence[str]) -> None:
    """One side, to its end."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.year_sides", description=__doc__)
    parser.add_argument("side", choices=("host", "peer"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("num_rounds", type=int)
    parser.add_argument(
        "--signed", action="store_true", help="with Ed25519 in the place of the simulation's keyed hash"
    )
    parser.add_argument(
        "--slices", type=int, default=NUM_MEMBERS, help="slices of a round's result; divides %(default)s"
    )
    options = parser.parse_args(arguments)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    run = replace(signed_run() if options.signed else hashed_run(), num_slices=options.slices)
    side = host_side if options.side == "host" else peer_side
    trio.run(side, run, options.folder, options.num_rounds, clock=trio.testing.MockClock(autojump_threshold=0))


if __name__ == "__main__":
    main(sys.argv[1:])
