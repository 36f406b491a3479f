"""Mutated certificates, reports of peers, round logs and generations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.lineage.updates import UnitContext
from averaging.state.generations import Generations
from averaging.state.log_entries import LOG_NAME, LoggedContribution, LoggedRounds
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.errors import PotluckError, StorageError
from protocol.host.calls import START_DOMAIN
from protocol.host.reports import HeldoutResult, PeerReport
from protocol.identity.envelope import open_envelope
from protocol.ids import Root
from protocol.pb import coordinator_pb2 as pb
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import decode_certificate
from tests.averaging.rounds.round_world import (
    CODEC,
    GRID,
    RUN_ID,
    UNIT,
    VERIFIER,
    Party,
    RoundWorld,
    apply_whole,
    open_world,
)
from tests.benchmarks.mutating import Outcome, Reported, heard, mutated, outcome_of
from tests.coordinator import chain_world
from tests.coordinator.host_world import HostWorld, open_host
from tests.virtual import InlineOffload

PEERS: Final = chain_world.PEERS


# --- certificates -----------------------------------------------------------------------------------------------------------------


async def measure_certificates(number: int, chance: random.Random) -> list[Outcome]:
    """Real signatures; certificates with just a quorum, and with an ack more than it needs. None is accepted: neither may an ack be
    damaged that was not needed, nor may bytes that nobody signed travel along.
    """
    chain = chain_world.Chain()
    links = [chain.genesis]
    for voters in (2, 3, 2, 3):
        chain.commit(voters=voters)
        links.append(_verified(chain.certificates[-1], links[-1]))

    async def trial() -> Reported:
        position = chance.randrange(len(chain.certificates))
        raw, how = mutated(chain.certificates[position], chance)
        try:
            _verified(raw, links[position])
        except PotluckError as error:
            is_good_one_taken = _verified(chain.certificates[position], links[position]) == links[position + 1]
            return how, "refused" if is_good_one_taken else "missed", [error.one_line()]
        return how, "missed", None

    return [await outcome_of("certificates", trial) for _ in range(number)]


def _verified(raw: bytes, parent: ChainLink) -> ChainLink:
    certificate = decode_certificate(raw)
    return verify_certificate(certificate, parent, verifier=chain_world.VERIFIER, run_id=chain_world.RUN_ID)


# --- reports ----------------------------------------------------------------------------------------------------------------------


async def measure_reports(number: int, chance: random.Random, folder: Path) -> list[Outcome]:
    """Signed reports that bring a commit and a loss: a mutated one is refused and leaves nothing, the same one unharmed is taken."""
    outcomes: list[Outcome] = []
    with open_host(folder) as host:
        chain = await _started(host)
        for position in range(number):
            peer = PEERS[position % len(PEERS)]
            report = PeerReport(
                "training",
                "",
                UNIT,
                tokens_ready=position,
                certificates=tuple(chain.certificates),
                heldout=(HeldoutResult(chain.genesis.commit, 0, 0, 5.5),),
            )
            request = host.report(peer, report)

            async def trial(request: bytes = request) -> Reported:
                envelope, how = mutated(pb.Sealed.FromString(request).envelope, chance)
                before = _recorded(host)
                lines: list[str] = []
                try:
                    await host.service.report(pb.Sealed(envelope=envelope).SerializeToString())
                except PotluckError as error:
                    lines.append(error.one_line())
                is_unused = bool(lines) and _recorded(host) == before
                await host.service.report(request)
                return how, "refused" if is_unused and _recorded(host) != before else "missed", lines

            outcomes.append(await outcome_of("reports", trial))
            if position % 10 == 9:
                chain.commit(tokens=(1, 1, 1))
                chain.certificates = chain.certificates[-1:]
    return outcomes


async def _started(host: HostWorld) -> chain_world.Chain:
    host.invite()
    for peer in PEERS:
        await host.service.admit(host.admit_request(peer))
    for state, is_ready in (("joining", False), ("waiting", True)):
        for peer in PEERS:
            await host.service.report(host.report(peer, PeerReport(state, "", UNIT, is_ready_to_start=is_ready)))
    sealed = host.tracker.start_record
    envelope = open_envelope(
        sealed, verifier=chain_world.VERIFIER, domain=START_DOMAIN, run_id=host.run_id, now_unix_ms=None
    )
    chain = chain_world.Chain(host.run_id, given_start=envelope.payload)
    chain.commit(tokens=(1, 1, 1))
    return chain


def _recorded(host: HostWorld) -> object:
    """Everything that a report can leave behind."""
    reports = {peer: entry.report for peer, entry in host.tracker.peers.items()}
    ledger = host.ledger
    return reports, host.tracker.news(), ledger.commits(UNIT), ledger.loss_points(), ledger.checkpoints()


# --- the log of rounds, and generations -------------------------------------------------------------------------------------------


@dataclass
class _Life:
    """A peer's unit on real files, as one process left them."""

    world: RoundWorld
    folder: Path
    party: Party

    def chain(self) -> UnitChain:
        """The next process on these files."""
        offload = InlineOffload()
        storage = FileStorage(self.folder, offload)
        log, generations = UnitLog(storage), Generations(storage, GRID, offload)
        tools = UnitContext(RUN_ID, UNIT, VERIFIER, CODEC, GRID, offload, log, generations)
        return UnitChain(tools, self.world.start_record, self.world.genesis)

    async def live(self) -> None:
        """Three commits with all that a process writes about a round, one lineage left, and votes on the open base."""
        chain = self.chain()
        await chain.restore()
        for commit in self.world.commits(3):
            base, peer = chain.head.commit, self.party.peer
            await chain.log_contribution(base, LoggedContribution(Root(b"r" * 32), 100, chain.head.index))
            await chain.tools.log.log_promise(base, Ballot(1, peer))
            await chain.tools.log.log_ack(base, Ballot(2, peer), commit.certificate.record)
            await commit.write_to(chain.tools.log)
            await apply_whole(chain, commit.link, commit.certificate)
        await chain.tools.log.log_promise(chain.head.commit, Ballot(3, self.party.peer))


async def _load(records: Sequence[bytes]) -> LoggedRounds:
    disk = MemoryDisk()
    disk.logs[LOG_NAME] = list(records)
    return await UnitLog(MemoryStorage(disk)).load()


async def measure_log(number: int, chance: random.Random, folder: Path) -> list[Outcome]:
    """rounds.log as a real file, and what a start reads in it: all of it, all but the last record, or one error.

    A cut takes off the last record or a part of it: what was synced does not vanish in a crash, and no byte of a log that ends with an
    earlier record tells it from the log of an earlier moment.
    """
    outcomes: list[Outcome] = []
    async with open_world() as world:
        life = _Life(world, folder, world.parties[0])
        await life.live()
        path = folder / LOG_NAME
        good = path.read_bytes()
        records = await FileStorage(folder, InlineOffload()).read_records(LOG_NAME)
        whole, torn = await _load(records), await _load(records[:-1])

        async def trial() -> Reported:
            data, how = mutated(good, chance, longest_cut=len(records[-1]))
            path.write_bytes(data)
            with heard("unfinished_record_left_out") as reasons:
                try:
                    logged = await life.chain().tools.log.load()
                except StorageError as error:
                    return how, "refused", [error.one_line()]
            verdicts = ((logged == whole, "same"), (logged == torn, "torn tail"))
            return how, next((verdict for is_it, verdict in verdicts if is_it), "missed"), reasons

        outcomes += [await outcome_of("log", trial) for _ in range(number)]

        async def trial_past_checksums() -> Reported:
            spoilt = list(records)
            place = chance.randrange(len(spoilt))
            spoilt[place], how = mutated(spoilt[place], chance)
            world.parties[1].disk = MemoryDisk()
            world.parties[1].disk.logs[LOG_NAME] = spoilt
            world.parties[1].boot()
            try:
                await world.parties[1].chain.restore()
            except PotluckError as error:
                return how, "refused", [error.one_line()]
            return how, "unchecked", None

        outcomes += [await outcome_of("entries", trial_past_checksums) for _ in range(number)]
    return outcomes


async def measure_generations(number: int, chance: random.Random, folder: Path) -> list[Outcome]:
    """The newest generation is damaged: the one before is taken, the log brings it to the same head, and it is said."""
    outcomes: list[Outcome] = []
    async with open_world() as world:
        life = _Life(world, folder, world.parties[0])
        await life.live()
        before = life.chain()
        await before.restore()
        newest = folder / (await before.tools.generations.list())[-1].name
        good = newest.read_bytes()

        async def trial() -> Reported:
            data, how = mutated(good, chance)
            newest.write_bytes(data)
            chain = life.chain()
            with heard("generation_damaged") as reasons:
                await chain.restore()
            is_right = (chain.head, chain.root) == (before.head, before.root)
            return how, "replaced" if is_right else "missed", reasons

        outcomes += [await outcome_of("generations", trial) for _ in range(number)]
    return outcomes
