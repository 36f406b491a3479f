"""A unit's outer state: the head, the lineage behind it, and how applying a commit changes memory and disk.

Rules: R8, R19, R21, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import structlog
import torch
import trio

from averaging.rounds.lineage import retention as keeping
from averaging.rounds.lineage.head_state import AppliedCommit, BeginShift, HeadState, Loan
from averaging.rounds.lineage.past.beginning import begin_anew, begin_later, first_link
from averaging.rounds.lineage.past.followed_line import FollowedLine
from averaging.rounds.lineage.past.offered_work import OfferedWork
from averaging.rounds.lineage.unit_log_view import EarlierVotes, followed, led_to
from averaging.rounds.lineage.updates import UnitContext, Updates
from averaging.state.log_entries import LoggedContribution, LoggedRounds
from averaging.state.state import StateHeader, UnitState, absent_state, is_absent
from protocol.errors import LocalProtocolError, PotluckError, StorageError
from protocol.estimates.unit_disk import Occasion
from protocol.ids import CommitId, Root
from protocol.rounds.lineage.chain import attested_roots, open_leave, verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.lineage.lineage import CommitTree, TreeNode, tree_of
from protocol.rounds.lineage.milestones import SignedMilestone
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.wire import commit_id, encode_certificate
from protocol.rounds.state import OpenRound

log = structlog.get_logger()

KEPT_ROOTS = 64
"""Own state roots that are kept for comparison with what later commits attest."""


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
    """The lineage that is followed here, and the outer state at its head. For `remake` see `retention.Genesis`. With it the state at
    the start may be absent: it is made if no generation is on disk.
    """

    def __init__(
        self, tools: UnitContext, start_record: bytes, genesis: UnitState, remake: Callable[[], UnitState] | None = None
    ) -> None:
        self.tools = tools
        self.updates = Updates(tools)
        self.genesis: keeping.Genesis = remake or genesis
        self._start = genesis_link(start_record, tools.unit)
        self.line = FollowedLine([self._start], [])
        """The lineage up to the head. It begins at the genesis, or at a milestone that lies far behind the head."""

        self.held = HeadState(genesis, is_lent=remake is None)
        """The state, and whether commits may move its vectors in place."""
        self.root = Root(bytes(32))
        self.rooted = CommitId(bytes(32))
        """The commit whose state root `root` is: the head, or the one before it while the head's root is being computed."""

        self.is_kept = True
        """False between a commit and the end of `keep`: what is due on disk is not done yet."""

        self._roots: dict[CommitId, Root] = {}
        self.moving = trio.Lock()
        """Lock for moving the head. When several units move together, the caller takes it."""

        self.is_sound = True
        """False while our state differs from the one that the run attests (R21); state_repair.py replaces it."""
        self.became_unsound = trio.Event()
        self._tree = tree_of(self._start)
        self.offered = OfferedWork()
        self._votes = EarlierVotes(partial(open_leave, verifier=tools.verifier, run_id=tools.run_id))

    @property
    def state(self) -> UnitState:
        """The state at the head. Its vectors may move with the next commit. A reader that needs them longer borrows them (`lend`)."""
        return self.held.state

    @property
    def links(self) -> list[ChainLink]:
        """The links of the lineage, oldest first."""
        return self.line.links

    @property
    def head(self) -> ChainLink:
        """The newest applied link."""
        return self.line.head

    @property
    def tree(self) -> CommitTree:
        """Everything that the log proved when it was read, also beyond the head if bytes were lost. The rounds take it over."""
        return self._tree

    def forget_tree(self) -> None:
        """The rounds have taken the tree over."""
        self._tree = tree_of(self.head)

    # --- the start of a process -----------------------------------------------------------------------------------------------

    async def restore(self) -> OpenRound:
        """Read the disk: the newest good generation, then the log on top. Returns what is known of the open round.

        Raises:
            StorageError: the log does not continue the start record: the folder belongs to another run.
        """
        logged = await self.tools.log.load()
        first = first_link(self.tools.milestones, self._start, logged.begins)
        # reading a long run's certificates takes a while, in which other peers must hear from us
        self.line, self._tree = await self.tools.offload.run(partial(followed, first, logged, self._verified))
        if self.tools.milestones is not None:
            self.tools.milestones.lines[self.tools.unit] = lambda index: self.line.commit_at(index)
        self.offered = OfferedWork(logged)
        logged_lineage = list(self.links)
        await self.restore_state()
        open_round = self._read_votes(logged)
        await self._tidy_log()
        # results of commits that our state cannot reach now are kept: they are not downloaded again
        await self._sweep_updates(logged_lineage)
        if self.tools.feedback is not None:
            await self.tools.feedback.restore(self.links, self.tree)
        return open_round

    def votes_on(self, base: CommitId) -> OpenRound:
        """The votes on a base that becomes our head, from our log as it was last read."""
        return self._votes.on(base)

    def _read_votes(self, logged: LoggedRounds) -> OpenRound:
        self._votes.read(logged, {link.commit for link in self.links[:-1]})
        return self._votes.on(self.head.commit)

    async def restore_state(self) -> None:
        """Read the state from the disk, or make it again. Raises StorageError: the disk cannot be read."""
        commits, attested = [link.commit for link in self.links], attested_roots(self.links)
        newest = await self.tools.generations.load_newest(commits, attested)
        state: UnitState | None = self.state
        if newest is not None:
            for problem in newest[2]:
                log.warning("generation_damaged", reason=problem)
            state = newest[0]
        elif len(self.links) > 1 or is_absent(self.state):
            state = await keeping.first_state(self.genesis, self.tools, self.line.root)
        if state is None:
            self._stand_without_state()
            return
        position = commits.index(state.head)
        for link in self.links[position + 1 :]:
            data = await self.updates.read_good(link)
            if data is None:
                break
            state = await self.updates.step_in_place(state, link, data)
            # A generation that no commit attests may have been damaged before it was written: a later root shows that.
            if link.commit in attested and await self.updates.root(state) != attested[link.commit]:
                self.doubt()
        self.line.replace_after(commits.index(state.head), (), ())
        self._stand_at(state, await self.updates.root(state))

    def _stand_without_state(self) -> None:
        """No good state is on the disk, and none can be made, since the lineage does not begin at the genesis. One has to come from
        other peers. Until then ours is of no use (R21).
        """
        head = self.head
        header = StateHeader(head.unit, head.commit, head.index, head.total_tokens)
        self.held.stand_at(absent_state(header, self.tools.grid.num_elements))
        self.held.is_torn = True
        self.root, self.rooted = Root(bytes(32)), head.commit
        self.doubt()

    @property
    def lacks_state(self) -> bool:
        """Whether there is no state here at all."""
        return self.held.is_torn and is_absent(self.state)

    def data_position(self) -> int:
        """The local step to resume from (offered_work.py)."""
        return self.offered.next_step(self.line)

    async def log_contribution(self, base: CommitId, contribution: LoggedContribution) -> None:
        """Write our contribution on a base to disk, before its header leaves (R8)."""
        await self.tools.log.log_contribution(base, contribution)
        self.offered.add(base, contribution)

    async def start_from(
        self,
        state: UnitState,
        certificates: Sequence[Certificate],
        milestone: SignedMilestone | None = None,
        verified: Sequence[ChainLink] = (),
    ) -> None:
        """Adopt a downloaded state before the rounds begin: the chain up to its commit is verified, logged and becomes ours.

        Args:
            certificates: from our oldest link on, or from the milestone on.
            milestone: where the lineage begins, if ours does not lead to the state.
            verified: links that the caller has verified already.

        Raises:
            RemoteProtocolError: the certificates do not lead from there to the state.
        """
        first = self.line.root if milestone is None else milestone.link
        known = {link.commit: link for link in (*self.links, *verified)}
        led = partial(led_to, first, self._tree, state.head, certificates, partial(self._verified, known=known))
        line, tree = await self.tools.offload.run(led)
        root = await self.updates.root(state)
        # certificates first: the next start cannot use a generation that the log does not lead to
        if milestone is not None:
            await begin_anew(self.tools.log, milestone, self.line, self.offered)
        base, own = (self.head.commit, len(self.line.certificates)) if milestone is None else (first.commit, 0)
        await self.tools.log.log_lineage(base, [encode_certificate(each) for each in line.certificates[own:]])
        await self.tools.generations.write(state, root)
        self.line, self._tree = line, tree
        self._stand_at(state, root)
        await self.tools.generations.incoming.clear()
        await self._sweep_updates(self.links)
        if self.tools.feedback is not None:
            await self.tools.feedback.follow(self.links, self.tree)
        self.line.lighten()
        if milestone is not None:
            await self._tidy_log(is_due=True)

    def _verified(
        self, certificate: Certificate, parent: ChainLink, known: Mapping[CommitId, ChainLink] = MappingProxyType({})
    ) -> ChainLink:
        link = known.get(commit_id(parent.commit, certificate.record))
        if link is not None:
            return link
        return verify_certificate(certificate, parent, verifier=self.tools.verifier, run_id=self.tools.run_id)

    # --- the next commit ------------------------------------------------------------------------------------------------------

    async def apply(
        self, link: ChainLink, certificate: Certificate, begin_shift: BeginShift | None = None
    ) -> AppliedCommit:
        """Log the certificate, then apply the commit (R19); its bytes must be on disk. They are checked, and it is logged, before any
        change, so a failed commit may be tried again. A step in place that fails after that leaves a state that must be made again
        (R21). The trainer need not wait for the next steps, `prove` and `keep`.

        Args:
            begin_shift: makes the shift of theta while the state moves in place; None: the anchor before the commit is kept for it.

        Raises:
            LocalProtocolError: the bytes are not here, or the link does not follow our head.
            StorageError: the certificate could not be written, or the bytes on our disk were damaged and have been deleted.
        """
        async with self.moving:
            return await self._apply(link, certificate, begin_shift)

    async def _apply(self, link: ChainLink, certificate: Certificate, begin_shift: BeginShift | None) -> AppliedCommit:
        if self.held.is_torn:
            raise LocalProtocolError("a state that is between two commits", "one that was made again")
        if link.parent != self.head.commit:
            raise LocalProtocolError("a commit that does not follow our head", "the next one")
        data = await self.updates.read(link)
        if data is None:
            raise LocalProtocolError("a commit whose bytes are not on disk", "GatherBytes first")
        raw = encode_certificate(certificate)
        applied = await self._step(link, data, partial(self.tools.log.log_certificate, link.parent, raw), begin_shift)
        self.line.append(link, certificate)
        self.is_kept = False
        if self._differs(link):
            self.doubt()
        return applied

    async def _step(
        self,
        link: ChainLink,
        data: Sequence[bytes | memoryview],
        log_it: Callable[[], Awaitable[None]],
        begin_shift: BeginShift | None,
    ) -> AppliedCommit:
        held, record, shift = self.held, link.record, None
        try:
            moves = record is not None and not record.rewind and held.may_change(record.outer)
            if begin_shift is not None and moves:
                shift = begin_shift()
            if shift is not None:
                return await held.step_in_place(self.updates, link, data, log_it, shift)
            return await held.step_aside(self.updates, link, data, log_it)
        except PotluckError as error:
            if held.is_torn:
                held.torn_at = link.parent
                self.doubt()
            elif isinstance(error, StorageError):
                await self.updates.read_good(link)  # deletes damaged bytes, so that they are fetched again
            raise

    async def prove(self, applied: AppliedCommit) -> Root:
        """The state root of an applied commit. The machine hears of a commit after this: the next contribution names the root."""
        async with self.moving:
            if self.state.head != applied.state.head:  # switched to another lineage meanwhile
                return await self.updates.root(applied.state)
            if self.rooted != self.state.head:
                self._stand_at(self.state, await self.updates.root(self.state))
            return self.root

    async def keep(self, occasion: Occasion = Occasion.COMMIT) -> None:
        """Delete what is too old on disk, and write the head's state as a generation if one is due. After an earlier crash the log
        leads to the head.
        """
        async with self.moving:
            if self.rooted != self.state.head:
                return  # another commit came first: its own `keep` follows
            await self._keep_generation(occasion)
            is_shorter = await begin_later(self.tools.log, self.tools.milestones, self.line, self.offered)
            await self._tidy_log(is_due=is_shorter)
            self.is_kept = True

    def _stand_at(self, state: UnitState, root: Root) -> None:
        self.held.stand_at(state)
        self.root, self.rooted = root, state.head
        self._roots[state.head] = root
        while len(self._roots) > KEPT_ROOTS:
            del self._roots[next(iter(self._roots))]

    def doubt(self) -> None:
        """Note that our state is not the one that the run attests, so that it is replaced."""
        self.is_sound = False
        self.became_unsound.set()

    def _differs(self, link: ChainLink) -> bool:
        attested = link.agreed
        return attested is not None and self._roots.get(attested.commit, attested.state_root) != attested.state_root

    # --- a state that differs from what the run attests -----------------------------------------------------------------------

    async def replace_state(self, state: UnitState) -> torch.Tensor | None:
        """Replace the head's state by the one that follows from `state`, at a commit of ours; returns the anchor's shift, (N,)
        float32, or None if the state was between two commits, so that there was no anchor. The memory of `state` is taken over.

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
                state = await self.updates.step_in_place(state, link, data)
            shift_N = None if self.held.is_torn else torch.sub(state.anchor_N, self.state.anchor_N)
            self._stand_at(state, await self.updates.root(state))
            self.is_sound, self.became_unsound = True, trio.Event()
            await self._keep_generation(Occasion.REPLACED, commits[commits.index(good) : -1])
            await self.tools.generations.incoming.clear()
            return shift_N

    async def _keep_generation(self, occasion: Occasion, doubtful: Sequence[CommitId] = ()) -> None:
        """Keep the head's generation, unless our state differs from the attested one: a restart must not load a wrong state."""
        if self.is_sound:
            await keeping.keep_generation(self.tools, self.links, self.state, self.root, occasion, doubtful)

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

    async def _tidy_log(self, *, is_due: bool = False) -> None:
        newest = [link.commit for link in self.links[-self.num_kept_votes :]]
        await self.tools.log.tidy(newest, is_due=is_due)

    @property
    def disk_bound_bytes(self) -> int:
        """The most bytes that this unit takes on disk."""
        return keeping.disk_bound_bytes(self.tools)

    async def _sweep_updates(self, lineage: Sequence[ChainLink]) -> None:
        """Delete all results except those that are kept of this lineage. After an absence the head is far ahead of the results
        kept earlier, and no later commit would name them.
        """
        try:
            found = keeping.on_lineage(lineage, await self.tools.generations.list())
            await self.tools.log.keep_results(keeping.kept_bases(self.tools, lineage, found))
        except StorageError as error:
            log.warning("updates_not_dropped", reason=error.one_line())

    # --- another lineage ------------------------------------------------------------------------------------------------------

    async def replay(self, state: UnitState, path: Sequence[TreeNode], *, is_own: bool) -> UnitState:
        """The state after these commits, whose bytes are on disk; `is_own` if the memory of `state` may be taken over.

        Raises:
            LocalProtocolError: the bytes of one of them are not here.
        """
        for node in path:
            data = await self.updates.read_good(node.link)
            if data is None:
                raise LocalProtocolError("a commit whose bytes are not on disk", "GatherBytes first")
            made = self.updates.step_in_place if is_own else self.updates.advance
            state = await made(state, node.link, data)
        return state

    async def prepared(
        self, fork: CommitId, path: tuple[TreeNode, ...], fork_state: UnitState | None, state: UnitState
    ) -> PreparedSwitch:
        """A switch to `state`, to be made later."""
        anchor_N = fork_state.anchor_N if fork_state is not None else None
        return PreparedSwitch(fork, path, anchor_N, state, await self.updates.root(state))

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
        position, nodes = self.line.place(prepared.fork), prepared.path
        if position is None:
            raise LocalProtocolError("a switch at a commit of another lineage", "a fork of our own")
        lost = self.links[position + 1 :]
        proofs = [node.certificate for node in nodes if node.certificate is not None]
        self.line.replace_after(position, [node.link for node in nodes], proofs)
        self._stand_at(prepared.state, prepared.root)
        await self._keep_generation(Occasion.REPLACED)
        await self.tools.generations.incoming.clear()
        await self._drop_lost(lost, prepared.path[0].link)
        await self._sweep_updates(self.links)
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


async def lend(chain: UnitChain) -> Loan:
    """The state at the head, which stays as it is until it is given back: a commit in that time makes another one."""
    async with chain.moving:
        return chain.held.lend()


def sealed_milestones(chain: UnitChain) -> tuple[bytes, ...]:
    """The unit's milestones that are kept here, in the host's envelopes, oldest first."""
    held = chain.tools.milestones
    return tuple(each.sealed for each in held.of(chain.tools.unit).held) if held is not None else ()
