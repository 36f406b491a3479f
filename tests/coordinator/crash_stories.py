"""The coordinator's ways of writing, each as a story: what was before, the act that is cut short, and what can be read afterwards."""

from __future__ import annotations

import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import trio
import trio.testing

from coordinator.checkpoints.checkpoints import verify_checkpoint
from coordinator.ledger.ledger import LEDGER_FILE, open_ledger
from coordinator.ledger.ledger_damage import COUNT_ROW
from protocol.errors import ConfigError
from protocol.host.calls import decode_admit_reply
from protocol.host.host_statements import HostStatements
from protocol.host.reports import HeldoutResult, PeerReport
from protocol.identity.identity_file import open_identity
from protocol.identity.revocation import Revocation, seal_revocation
from protocol.pb import coordinator_pb2 as pb
from tests.coordinator.admission.test_service import READY, admit_all, ban, renew_request, start
from tests.coordinator.chain_world import HOST, PEERS, Chain
from tests.coordinator.checkpoints.test_checkpointer import Donors, checkpointer, commit_and_report
from tests.coordinator.host_world import UNIT, HostWorld, open_host

T = TypeVar("T")
Value = Mapping[str, object]
RUN_FILE: Final = "run.toml"


def in_host(folder: Path, use: Callable[[HostWorld], Awaitable[T]]) -> T:
    """The answer of `use`, in a coordinator that has just started on `folder`."""

    async def main() -> T:
        with open_host(folder) as host:
            await host.tracker.restore()
            return await use(host)

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def read_tables(ledger_file: Path) -> Value:
    """Every row of the ledger, by table, in a fixed order."""
    with closing(sqlite3.connect(ledger_file)) as db:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'checksums' ORDER BY name"
        names = [name for (name,) in db.execute(query)]
        rows = {name: sorted(map(repr, db.execute(f"SELECT * FROM {name}"))) for name in names}
        # How often something was written says nothing of the run, and a start that tidies up writes once more.
        return {**rows, "kv": [row for row in rows.get("kv", []) if COUNT_ROW not in row]}


class Story(ABC):
    """One way of writing. A story may keep what its peers hold; a forked child has a copy of it."""

    name: str

    def prepare(self, folder: Path) -> None:
        """The state before the act. Nothing, unless said otherwise."""
        _ = folder

    @abstractmethod
    def act(self, folder: Path) -> None:
        """Start on the folder and write; may be done again, whatever became of it."""

    @abstractmethod
    def read(self, folder: Path) -> Value:
        """Start on the folder as production does, and say everything that is there."""

    @abstractmethod
    def outcome(self, folder: Path) -> Value:
        """The state that the act must leave, however often it was begun."""


class HostStory(Story):
    """A story on one running coordinator.

    Attributes:
        lasting: what does not depend on how often the act was begun.
    """

    lasting: tuple[str, ...] = ("commits", "loss_points", "news", "missing", "invites", "peers")

    def prepare(self, folder: Path) -> None:
        """The run before."""
        in_host(folder, self.before)

    def act(self, folder: Path) -> None:
        """The act that is cut short."""
        in_host(folder, self.write)

    async def before(self, host: HostWorld) -> None:
        """The peers' earlier acts."""
        host.invite()

    @abstractmethod
    async def write(self, host: HostWorld) -> None:
        """The acts of peers, or of the coordinator by itself."""

    async def recover(self, host: HostWorld) -> None:
        """The first acts of production when it starts, beside reading the ledger."""
        _ = host

    def read(self, folder: Path) -> Value:
        """All rows, and what the coordinator makes of them."""

        async def look(host: HostWorld) -> Value:
            await self.recover(host)
            news = host.tracker.news()
            return {
                **read_tables(host.folder / LEDGER_FILE),
                "news": repr((news.phase, news.head, news.index, news.total_tokens, news.start_record)),
                "missing": repr(host.tracker.picture().missing),
                "folders": _folders(host),
            }

        return in_host(folder, look)

    def outcome(self, folder: Path) -> Value:
        """The same, without times and without what is issued anew each time."""
        value = self.read(folder)
        return {name: value[name] for name in self.lasting}


def _folders(host: HostWorld) -> Sequence[str]:
    """Checkpoints as listed, each verified; and what lies in their folder."""
    folder = host.folder / "checkpoints"
    listed = [f"{row.index} {verify_checkpoint(folder / row.path).commit}" for row in host.tracker.checkpoints]
    return [*listed, *sorted(path.name for path in folder.glob("*"))]


class FirstLedger(Story):
    """The ledger is made."""

    name = "making the ledger"

    def act(self, folder: Path) -> None:
        """Open it."""
        with open_ledger(folder / LEDGER_FILE):
            pass

    def read(self, folder: Path) -> Value:
        """Open it again: half a schema would be found now."""
        self.act(folder)
        return read_tables(folder / LEDGER_FILE)

    def outcome(self, folder: Path) -> Value:
        """The schema."""
        return self.read(folder)


class OpeningTheRun(Story):
    """The host's folder is made: identity, data, authority, manifest. Keys are drawn anew, so what counts is whether it opens."""

    name = "opening the run"

    def prepare(self, folder: Path) -> None:
        """A run file and its texts."""
        from tests.coordinator.run.test_run_files import write_run_file

        write_run_file(folder)
        for text in (folder / "texts").iterdir():
            os.truncate(text, 600)

    def act(self, folder: Path) -> None:
        """Open or find it."""
        from coordinator.run.run_files import IDENTITY_FILE, open_run

        state = folder / "state"
        with open_identity(state / IDENTITY_FILE) as held:
            open_run(folder / RUN_FILE, state, held.identity, now_unix_s=1_700_000_000.0)

    def read(self, folder: Path) -> Value:
        """Whether there is a run, whole and signed by the identity that lies beside it."""
        from coordinator.run.run_files import IDENTITY_FILE, load_run

        state = folder / "state"
        try:
            run = load_run(state)
        except ConfigError:
            return {"run": "none"}
        with open_identity(state / IDENTITY_FILE) as held:
            is_ours = run.manifest.host_public_key == held.identity.public_key.hex()
        return {"run": repr((run.manifest.dataset_id, run.manifest.dataset_tokens)), "is ours": is_ours}

    def outcome(self, folder: Path) -> Value:
        """The run."""
        return self.read(folder)


class Admission(HostStory):
    """A newcomer's invite is burnt, the peer added, its credential issued."""

    name = "admission"

    def __init__(self) -> None:
        self._request = b""

    async def before(self, host: HostWorld) -> None:
        """An invite for one."""
        host.invite(uses=1)
        self._request = host.admit_request(PEERS[0])

    async def write(self, host: HostWorld) -> None:
        """The newcomer asks; after a cut it asks again, with the same invite."""
        await host.service.admit(self._request)


class Renewal(HostStory):
    """A peer's next credential is issued."""

    name = "renewal"

    def __init__(self) -> None:
        self._request = b""

    async def before(self, host: HostWorld) -> None:
        """Three peers were admitted."""
        await admit_all(host)
        self._request = renew_request(host, PEERS[0])

    async def write(self, host: HostWorld) -> None:
        """One of them asks again."""
        await host.service.renew(self._request)


class Forgotten(HostStory):
    """An old copy of the ledger does not know a peer, which shows its credential."""

    name = "a peer that an old copy forgot"

    def __init__(self) -> None:
        self._report = b""

    def prepare(self, folder: Path) -> None:
        """The ledger from before the peer was admitted."""
        in_host(folder, self.before)
        for file in folder.glob(f"{LEDGER_FILE}*"):
            file.unlink()

    async def before(self, host: HostWorld) -> None:
        """The peer is admitted."""
        host.invite()
        reply = decode_admit_reply(await host.service.admit(host.admit_request(PEERS[0])))
        shown = pb.Sealed.FromString(host.report(PEERS[0], READY))
        shown.credential = reply.credential
        self._report = shown.SerializeToString()

    async def write(self, host: HostWorld) -> None:
        """It reports."""
        await host.service.report(self._report)


class Ban(HostStory):
    """A peer is sent away, beside the running coordinator."""

    name = "a ban"
    lasting = (*HostStory.lasting, "revocations")

    async def before(self, host: HostWorld) -> None:
        """Three peers were admitted."""
        await admit_all(host)

    async def write(self, host: HostWorld) -> None:
        """One of them is sent away."""
        ban(host, PEERS[0])


class BanBrought(HostStory):
    """A ban that an old copy of the ledger has lost comes back with a report."""

    name = "a ban that an old copy forgot"
    lasting = (*HostStory.lasting, "revocations")

    async def before(self, host: HostWorld) -> None:
        """A peer was admitted; the other one was sent away, and the copy does not even know it."""
        host.invite()
        await host.service.admit(host.admit_request(PEERS[1]))

    async def write(self, host: HostWorld) -> None:
        """The peer brings the host's own word."""
        entry = seal_revocation(HOST, host.run_id, Revocation(PEERS[0].peer_id, "equivocation", 1_700_000_000, 1))
        await host.service.report(host.report(PEERS[1], replace(READY, signed=HostStatements(revocations=(entry,)))))


class Start(HostStory):
    """The start record is signed."""

    name = "signing the start record"

    async def before(self, host: HostWorld) -> None:
        """Three peers were admitted."""
        await admit_all(host)

    async def write(self, host: HostWorld) -> None:
        """They say that they are ready."""
        for peer in PEERS:
            await host.service.report(host.report(peer, READY))


class Rounds(HostStory):
    """A report brings certificates and losses."""

    name = "a round's certificates and losses"

    def __init__(self) -> None:
        self._chain = Chain()

    async def before(self, host: HostWorld) -> None:
        """The run is at its second round."""
        self._chain = await start(host)
        for _ in range(2):
            self._chain.commit((20, 20, 20))
        await host.service.report(host.report(self._chain.evaluator, self._report(2.75)))
        for _ in range(3):
            self._chain.commit((20, 20, 20))

    def _report(self, nats: float) -> PeerReport:
        commit, index, total = self._chain.head
        return PeerReport(
            "training",
            "",
            UNIT,
            head=commit,
            index=index,
            tokens_per_s=100.0,
            loss_nats=3.0,
            certificates=tuple(self._chain.certificates),
            heldout=(HeldoutResult(commit, index, total, nats),),
        )

    async def write(self, host: HostWorld) -> None:
        """A peer that is heard for the second time reports three more rounds."""
        early = PeerReport("training", "", UNIT, tokens_per_s=100.0, loss_nats=3.0)
        await host.service.report(host.report(PEERS[1], early))
        await host.service.report(host.report(self._chain.evaluator, self._report(2.5)))


class Checkpoints(HostStory):
    """A checkpoint is written and an older one pruned."""

    name = "a checkpoint with pruning"
    lasting = (*HostStory.lasting, "checkpoints", "folders")

    def __init__(self) -> None:
        self._chain = Chain()
        self._donors = Donors()

    async def before(self, host: HostWorld) -> None:
        """Checkpoints of rounds 2, 4 and 6; the one of round 8 is due."""
        self._chain = await start(host)
        for index in (2, 4, 6):
            await commit_and_report(host, self._chain, self._donors, 2, 10)
            await self._checkpoint(host, index)
        await commit_and_report(host, self._chain, self._donors, 2, 10)

    async def write(self, host: HostWorld) -> None:
        """A peer says that it has the state of round 8."""
        await commit_and_report(host, self._chain, self._donors, 0, 10)
        await self._checkpoint(host, 8)

    async def _checkpoint(self, host: HostWorld, index: int) -> None:
        """Until there is a checkpoint of this round and everything older is as it should be."""
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(checkpointer(host, self._donors.fetch).run, host.clock, host.offload)
                while not self._is_done(host, index):
                    await trio.sleep(0.1)
                nursery.cancel_scope.cancel()

    @staticmethod
    def _is_done(host: HostWorld, index: int) -> bool:
        rows = host.tracker.checkpoints
        names = {path.name for path in (host.folder / "checkpoints").glob("*")}
        return bool(rows) and rows[-1].index == index and len(rows) <= 3 and names == {row.path for row in rows}

    async def recover(self, host: HostWorld) -> None:
        """The first thing that the checkpointer does."""
        await checkpointer(host, self._donors.fetch).recover(host.offload)


def all_stories() -> Sequence[Story]:
    """Every way of writing, with nothing done yet."""
    members = Admission(), Renewal(), Forgotten(), Ban(), BanBrought()
    return FirstLedger(), OpeningTheRun(), *members, Start(), Rounds(), Checkpoints()
