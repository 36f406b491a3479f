"""A unit's outer state: the head, the lineage behind it, and how applying a commit changes memory and disk.

Rules: R8, R19, R21, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import structlog
import torch
import trio

from averaging.rounds.lineage import retention as keeping
from averaging.rounds.lineage.unit_log_view import EarlierVotes, with_displaced
from averaging.rounds.lineage.updates import UnitContext, Updates
from averaging.state.state import UnitState
from averaging.state.unit_log import LoggedContribution, LoggedRounds
from protocol.errors import LocalProtocolError, RemoteProtocolError, StorageError
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain import attested_roots, verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.lineage.lineage import CommitTree, TreeNode, tree_of
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.wire import commit_id, decode_certificate, encode_certificate
from protocol.rounds.state import OpenRound

log = structlog.get_logger()

KEPT_ROOTS = 64
"""Own state roots that are kept for comparison with what later commits attest."""


_Lineage: TypeAlias = tuple[list[ChainLink], list[bytes], CommitTree]
"""Links from the genesis on, the certificates of all links after the genesis, and the tree of all that they prove."""


@dataclass(frozen=True)
class AppliedCommit:
    """The result of one commit here: the new state, and the anchor before it, (N,) float32."""

    state: UnitState
    previous_anchor_N: torch.Tensor


@dataclass(frozen=True)
class PreparedSwitch:
    """Another lineage, or a head far ahead, with all its bytes here.

    Attributes:
        fork: the commit that both lineages share.
        path: the commits after it, oldest first, ending at the state's commit.
        fork_anchor_N: (N,) float32, the anchor at the fork; None if it could not be rebuilt.
    """

    fork: CommitId
    path: tuple[TreeNode, ...]
    fork_anchor_N: torch.Tensor | None
    state: UnitState
    root: Root


class UnitChain:
    """The lineage that is followed here, and the outer state at its head. For `remake` see `retention.Genesis`."""

    def __init__(
        self, tools: UnitContext, start_record: bytes, genesis: UnitState, remake: Callable[[], UnitState] | None = None
    ) -> None:
        self.tools = tools
        self.updates = Updates(tools)
        self._genesis: keeping.Genesis = remake or genesis
        self.links: list[ChainLink] = [genesis_link(start_record, tools.unit)]
        self.certificates: list[bytes] = []
        self.state = genesis
        self.root = Root(bytes(32))
        self.rooted = CommitId(bytes(32))
        """The commit whose state root `root` is: the head, or the one before it while the head's root is being computed."""

        self.is_kept = True
        """False between a commit and the end of `keep`: the log leads to the head, but its generation is not written yet."""

        self._roots: dict[CommitId, Root] = {}
        self.moving = trio.Lock()
        """Lock for moving the head. When several units move together, the caller takes it."""

        self.is_sound = True
        """False while our state differs from the one that the run attests (R21); state_repair.py replaces it."""
        self.became_unsound = trio.Event()
        self._tree = tree_of(self.links[0])
        self._offered: dict[CommitId, tuple[LoggedContribution, ...]] = {}
        self._votes = EarlierVotes()

    @property
    def head(self) -> ChainLink:
        """The newest applied link."""
        return self.links[-1]

    @property
    def tree(self) -> CommitTree:
        """Everything that the log proves, also beyond the head if bytes were lost."""
        return self._tree

    def certificates_after(self, known: Sequence[CommitId]) -> Sequence[bytes]:
        """Certificates of our lineage after the newest of these commits that is on it, oldest first; empty if none is."""
        wanted = set(known)
        for position in range(len(self.links) - 1, -1, -1):
            if self.links[position].commit in wanted:
                return tuple(self.certificates[position:])
        return ()

    def certificate_on(self, base: CommitId) -> bytes | None:
        """The certificate of the commit of our lineage whose parent is `base`."""
        after = self.certificates_after([base])
        return after[0] if after else None

    # --- the start of a process -----------------------------------------------------------------------------------------------

    async def restore(self) -> OpenRound:
        """Read the disk: the newest good generation, then the log on top. Returns what is known of the open round.

        Raises:
            StorageError: the log does not continue the start record: the folder belongs to another run.
        """
        logged = await self.tools.log.load()
        # verifying a long run's certificates takes seconds, in which other peers must hear from us
        followed = partial(self._followed, logged)
        self.links, self.certificates, self._tree = await self.tools.offload.run(followed)
        self._offered = {base: known.contributions for base, known in logged.bases.items() if known.contributions}
        logged_lineage = [link.commit for link in self.links]
        await self._restore_state()
        open_round = self._read_votes(logged)
        await self._tidy_log()
        # results of commits that our state cannot reach now are kept: they are not downloaded again
        await self._sweep_updates(logged_lineage)
        if self.tools.feedback is not None:
            await self.tools.feedback.restore(self.links, self.tree)
        return open_round

    def _followed(self, logged: LoggedRounds) -> _Lineage:
        """The lineage that the log describes; the tree also holds abandoned lineages. An entry on a base behind the head was
        written after a start that had lost later bytes. The lineage continues from that entry.
        """
        links, raws = [self.links[0]], list[bytes]()
        places = {links[0].commit: 0}
        found: list[tuple[ChainLink, Certificate]] = []
        for base, raw in logged.certificates:
            certificate, position = decode_certificate(raw), places.get(base)
            if position is None:
                raise StorageError(
                    "a log with a gap or of another run", "one chain from the run's start", "use another folder"
                )
            if position + 1 < len(links):
                if commit_id(base, certificate.record) == links[position + 1].commit:
                    continue
                for link in links[position + 1 :]:
                    del places[link.commit]
                del links[position + 1 :], raws[position:]
            links.append(self._verified(certificate, links[-1]))
            raws.append(raw)
            places[links[-1].commit] = position + 1
            found.append((links[-1], certificate))
        tree = tree_of(links[0]).add_all(found)
        return links, raws, with_displaced(tree, logged.displaced, self._verified)

    def votes_on(self, base: CommitId) -> OpenRound:
        """The votes on a base that becomes our head, from our log as it was last read."""
        return self._votes.on(base)

    def _read_votes(self, logged: LoggedRounds) -> OpenRound:
        self._votes.read(logged, {link.commit for link in self.links[:-1]})
        return self._votes.on(self.head.commit)

    async def _restore_state(self) -> None:
        commits, attested = [link.commit for link in self.links], attested_roots(self.links)
        newest = await self.tools.generations.load_newest(commits, attested)
        state = self.state
        if newest is not None:
            for problem in newest[2]:
                log.warning("generation_damaged", reason=problem)
            state = newest[0]
        position = commits.index(state.head)
        for link in self.links[position + 1 :]:
            data = await self.updates.read_good(link)
            if data is None:
                break
            state = await self.updates.advance(state, link, data)
            # A generation that no commit attests may have been damaged before it was written: a later root shows that.
            if link.commit in attested and await self.updates.root(state) != attested[link.commit]:
                self._doubt()
        del self.links[commits.index(state.head) + 1 :]
        del self.certificates[len(self.links) - 1 :]
        self._stand_at(state, await self.updates.root(state))

    def data_position(self, me: PeerId) -> int:
        """The local step to resume from: after the last one that a commit of this chain counted, or that an offered contribution
        may still count. No commit can count later steps, so their data is read again. No step is counted twice.
        """
        behind = {link.commit for link in self.links[:-1]}
        counted: dict[CommitId, Root] = {}
        for link in self.links:
            entry = link.record.contributor(me) if link.record is not None else None
            if entry is not None and link.record is not None:
                counted[link.record.parent] = entry.root
        position = 0
        for base, contributions in self._offered.items():
            for offered in contributions:
                if counted.get(base) == offered.root or base not in behind:
                    position = max(position, offered.next_step)
        return position

    async def log_contribution(self, base: CommitId, contribution: LoggedContribution) -> None:
        """Write our contribution on a base to disk, before its header leaves (R8)."""
        await self.tools.log.log_contribution(base, contribution)
        self._offered[base] = (*self._offered.get(base, ()), contribution)

    async def start_from(self, state: UnitState, certificates: Sequence[Certificate]) -> None:
        """Adopt a downloaded state before the rounds begin: the chain up to its commit is verified, logged and becomes ours.

        Raises:
            RemoteProtocolError: the certificates do not lead from the start to the state.
        """
        links, raws, tree = await self.tools.offload.run(partial(self._led_to, state.head, certificates))
        root = await self.updates.root(state)
        # certificates first: the next start cannot use a generation that the log does not lead to
        await self.tools.log.log_lineage(self.head.commit, raws[len(self.certificates) :])
        await self.tools.generations.write(state, root)
        self.links, self.certificates, self._tree = links, raws, tree
        self._stand_at(state, root)
        await self.tools.generations.incoming.clear()
        await self._sweep_updates([link.commit for link in links])
        if self.tools.feedback is not None:
            await self.tools.feedback.follow(self.links, self.tree)

    def _led_to(self, head: CommitId, certificates: Sequence[Certificate]) -> _Lineage:
        """The lineage up to a commit, each certificate verified."""
        links, raws = [self.links[0]], list[bytes]()
        found: list[tuple[ChainLink, Certificate]] = []
        for certificate in certificates:
            if links[-1].commit == head:
                break
            links.append(self._verified(certificate, links[-1]))
            raws.append(encode_certificate(certificate))
            found.append((links[-1], certificate))
        if links[-1].commit != head:
            raise RemoteProtocolError("a state that is not on the chain offered with it", "a commit of the chain")
        return links, raws, self._tree.add_all(found)  # keeps the other lineages of the log

    def _verified(self, certificate: Certificate, parent: ChainLink) -> ChainLink:
        return verify_certificate(certificate, parent, verifier=self.tools.verifier, run_id=self.tools.run_id)

    # --- the next commit ------------------------------------------------------------------------------------------------------

    async def apply(self, link: ChainLink, certificate: Certificate) -> AppliedCommit:
        """Log the certificate, then apply the commit (R19); its bytes must be on disk. Every step that can fail comes before any
        change, so a failed commit may be tried again. The trainer need not wait for the next steps, `prove` and `keep`.

        Raises:
            LocalProtocolError: the bytes are not here, or the link does not follow our head.
            StorageError: the certificate could not be written, or the bytes on our disk were damaged and have been deleted.
        """
        async with self.moving:
            return await self._apply(link, certificate)

    async def _apply(self, link: ChainLink, certificate: Certificate) -> AppliedCommit:
        if link.parent != self.head.commit:
            raise LocalProtocolError("a commit that does not follow our head", "the next one")
        data = await self.updates.read(link)
        if data is None:
            raise LocalProtocolError("a commit whose bytes are not on disk", "GatherBytes first")
        raw = encode_certificate(certificate)
        previous = self.state
        try:
            state = await self.updates.advance(previous, link, data)
        except StorageError:
            await self.updates.read_good(link)  # deletes damaged bytes, so that they are fetched again
            raise
        await self.tools.log.log_certificate(self.head.commit, raw)
        self.links.append(link)
        self.certificates.append(raw)
        self.state, self.is_kept = state, False
        if self._differs(link):
            self._doubt()
        return AppliedCommit(state, previous.anchor_N)

    async def prove(self, applied: AppliedCommit) -> Root:
        """The state root of an applied commit. The machine hears of a commit after this: the next contribution names the root."""
        async with self.moving:
            if self.state.head != applied.state.head:  # switched to another lineage meanwhile
                return await self.updates.root(applied.state)
            if self.rooted != self.state.head:
                self._stand_at(self.state, await self.updates.root(self.state))
            return self.root

    async def keep(self) -> None:
        """Write the head's state as a generation, and delete what is too old. After an earlier crash the log leads to the head."""
        async with self.moving:
            if self.rooted != self.state.head:
                return  # another commit came first: its own `keep` follows
            await self._keep_generation()
            await self._tidy_log()
            self.is_kept = True

    def _stand_at(self, state: UnitState, root: Root) -> None:
        self.state, self.root, self.rooted = state, root, state.head
        self._roots[state.head] = root
        while len(self._roots) > KEPT_ROOTS:
            del self._roots[next(iter(self._roots))]

    def _doubt(self) -> None:
        self.is_sound = False
        self.became_unsound.set()

    def _differs(self, link: ChainLink) -> bool:
        attested = link.record.agreed if link.record is not None else None
        return attested is not None and self._roots.get(attested.commit, attested.state_root) != attested.state_root

    # --- a state that differs from what the run attests -----------------------------------------------------------------------

    async def recomputed(self) -> UnitState | None:
        """The state at a commit of ours with the root that the run attests, from our own disk; None if the log's root differs."""
        attested = attested_roots(self.links)
        newest = await self.tools.generations.load_newest(attested, attested)
        state = newest[0] if newest is not None else await keeping.genesis_state(self._genesis, self.tools)
        last_good: UnitState | None = None
        for link in self.links[[link.commit for link in self.links].index(state.head) :]:
            if link.commit != state.head:
                data = await self.updates.read_good(link)
                if data is None:
                    break
                state = await self.updates.advance(state, link, data)
            expected = attested.get(link.commit)
            if expected is not None:
                if await self.updates.root(state) != expected:
                    return None  # the same arithmetic fails again: get the state from other peers
                last_good = state
        return last_good

    async def replace_state(self, state: UnitState) -> torch.Tensor:
        """Replace the head's state by the one that follows from `state`, at a commit of ours; returns the anchor's shift, (N,)
        float32.

        Raises:
            LocalProtocolError: that commit is not on our lineage, or bytes since then are gone.
        """
        async with self.moving:
            commits, good = [link.commit for link in self.links], state.head
            if good not in commits:
                raise LocalProtocolError("a state of another lineage", "one of ours")
            for link in self.links[commits.index(state.head) + 1 :]:
                data = await self.updates.read_good(link)
                if data is None:
                    raise LocalProtocolError("a commit whose bytes are gone", "a newer state")
                state = await self.updates.advance(state, link, data)
            shift_N = torch.sub(state.anchor_N, self.state.anchor_N)
            self._stand_at(state, await self.updates.root(state))
            self.is_sound, self.became_unsound = True, trio.Event()
            await self._keep_generation(doubtful=commits[commits.index(good) : -1])
            await self.tools.generations.incoming.clear()
            return shift_N

    async def _keep_generation(self, doubtful: Sequence[CommitId] = ()) -> None:
        """Write the head's generation, unless our state differs from the attested one: a restart must not load a wrong state."""
        if self.is_sound:
            await keeping.keep_generation(self.tools, self.links, self.state, self.root, doubtful)

    @property
    def last_agreed(self) -> ChainLink:
        """The newest commit of ours that a quorum made, or the genesis."""
        return keeping.last_agreed(self.links)

    @property
    def num_kept_updates(self) -> int:
        """Number of newest updates that are kept."""
        return keeping.num_kept_updates(self.tools)

    @property
    def num_kept_votes(self) -> int:
        """Number of newest bases on which acks are kept in full."""
        return keeping.num_kept_votes(self.tools)

    async def _tidy_log(self) -> None:
        await self.tools.log.tidy([link.commit for link in self.links[-self.num_kept_votes :]])

    @property
    def disk_bound_bytes(self) -> int:
        """The most bytes that this unit takes on disk."""
        return keeping.disk_bound_bytes(self.tools)

    async def _sweep_updates(self, lineage: Sequence[CommitId]) -> None:
        """Delete all results except those that are kept of this lineage. After an absence the head is far ahead of the results
        kept earlier, and no later commit would name them.
        """
        try:
            await self.tools.log.keep_results(keeping.kept_bases(self.tools, lineage))
        except StorageError as error:
            log.warning("updates_not_dropped", reason=error.one_line())

    # --- another lineage ------------------------------------------------------------------------------------------------------

    async def state_at(self, commit: CommitId) -> UnitState | None:
        """The state at a commit of our lineage, rebuilt from what is kept; None if that does not reach back so far."""
        if commit == self.state.head:
            return self.state
        position = next((i for i, link in enumerate(self.links) if link.commit == commit), None)
        if position is None:
            return None
        before = [link.commit for link in self.links[: position + 1]]
        newest = await self.tools.generations.load_newest(before, attested_roots(self.links))
        state = newest[0] if newest is not None else await keeping.genesis_state(self._genesis, self.tools)
        for link in self.links[before.index(state.head) + 1 : position + 1]:
            data = await self.updates.read_good(link)
            if data is None:
                return None
            state = await self.updates.advance(state, link, data)
        return state

    async def replay(self, state: UnitState, path: Sequence[TreeNode]) -> UnitState:
        """The state after these commits, whose bytes are on disk.

        Raises:
            LocalProtocolError: the bytes of one of them are not here.
        """
        for node in path:
            data = await self.updates.read_good(node.link)
            if data is None:
                raise LocalProtocolError("a commit whose bytes are not on disk", "GatherBytes first")
            state = await self.updates.advance(state, node.link, data)
        return state

    async def prepared(
        self, fork: CommitId, path: tuple[TreeNode, ...], fork_state: UnitState | None, state: UnitState
    ) -> PreparedSwitch:
        """A switch to `state`, to be made later."""
        anchor_N = fork_state.anchor_N if fork_state is not None else None
        return PreparedSwitch(fork, path, anchor_N, state, await self.updates.root(state))

    def has(self, commit: CommitId) -> bool:
        """Whether a commit is on our lineage."""
        return any(link.commit == commit for link in self.links)

    async def switch(self, prepared: PreparedSwitch) -> OpenRound:
        """Flip the head in one durable record (R24). Returns what is known of votes on the new head.

        Raises:
            StorageError: the record could not be written; nothing has changed.
        """
        async with self.moving:
            await self.tools.log.log_switch(prepared.fork, _certificates_of(prepared))
            return await self._flip(prepared)

    async def flip(self, prepared: PreparedSwitch) -> tuple[OpenRound, bool]:
        """Flip the head after a record of all units has been written; the caller holds `moving`. Returns what is known of votes
        on the new head, and whether our own log names it, too.
        """
        is_written = await self.tools.log.log_moved(prepared.fork, _certificates_of(prepared))
        return await self._flip(prepared), is_written

    async def _flip(self, prepared: PreparedSwitch) -> OpenRound:
        position = next(i for i, link in enumerate(self.links) if link.commit == prepared.fork)
        lost = self.links[position + 1 :]
        self.links[position + 1 :] = [node.link for node in prepared.path]
        self.certificates[position:] = _certificates_of(prepared)
        self._stand_at(prepared.state, prepared.root)
        await self._keep_generation()
        await self.tools.generations.incoming.clear()
        await self._drop_lost(lost, prepared.path[0].link)
        await self._sweep_updates([link.commit for link in self.links])
        return await self.votes_on_head()

    async def votes_on_head(self) -> OpenRound:
        """Our log's votes in the round on the new head. The head has moved already, so an unreadable disk must not stop us: a
        peer that does not know its votes casts none on this base.
        """
        try:
            return self._read_votes(await self.tools.log.load())
        except StorageError as error:
            log.warning("votes_not_read", unit=self.tools.unit, reason=error.one_line())
            return OpenRound(has_left=True)

    async def _drop_lost(self, lost: Sequence[ChainLink], kept: ChainLink) -> None:
        """Delete updates of the lineage that was left. On the fork itself those of the new lineage stay."""
        try:
            for link in lost:
                if link.record is not None:
                    is_fork = kept.record is not None and link.record.parent == kept.record.parent
                    names = [part.result_hash for part in kept.record.slices] if is_fork and kept.record else []
                    await self.tools.log.drop_results(link.record.parent, names)
        except StorageError as error:
            log.warning("updates_not_dropped", reason=error.one_line())


def _certificates_of(prepared: PreparedSwitch) -> list[bytes]:
    return [encode_certificate(node.certificate) for node in prepared.path if node.certificate is not None]
