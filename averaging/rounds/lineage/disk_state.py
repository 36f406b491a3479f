"""The newest state of a unit that its files give, for commands that may run at the same time as the daemon. Changes nothing on disk.

A generation is written every few commits. The results of the commits after it are on disk, too, so they are applied to it here.

Rules: R19, R21, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from averaging.rounds.lineage.updates import UnitContext, Updates
from averaging.state.generations import GenerationRef
from averaging.state.log_entries import LoggedRounds
from averaging.state.state import UnitState
from protocol.errors import RemoteProtocolError, StorageError
from protocol.ids import CommitId, Root
from protocol.rounds.lineage.chain import attested_roots
from protocol.rounds.lineage.chain_link import ChainLink, link_of
from protocol.rounds.messages.wire import decode_certificate

_TRIES: Final = 3
"""Times to read the files. A running daemon may replace a generation meanwhile and delete the results before it."""


@dataclass(frozen=True, slots=True)
class DiskState:
    """A state made from the disk.

    Attributes:
        root: of the state, computed from its bytes.
        is_attested: whether a later commit of the log names this root.
        newest_index: of the newest commit in the log; more than the state's where results are missing.
    """

    state: UnitState
    root: Root
    is_attested: bool
    newest_index: int


@dataclass(frozen=True, slots=True)
class _Logged:
    """The followed lineage by the log.

    Attributes:
        links: its commits, oldest first.
        attested: the state root that a later commit names for a commit.
    """

    links: tuple[ChainLink, ...]
    attested: Mapping[CommitId, Root]

    def after(self, commit: CommitId) -> Sequence[ChainLink] | None:
        """The links after a commit; None for a commit of another lineage."""
        parents = [link.parent for link in self.links]
        if commit in parents:
            return self.links[parents.index(commit) :]
        is_newest = not self.links or self.links[-1].commit == commit
        return () if is_newest else None


async def newest_on_disk(tools: UnitContext, genesis: Callable[[], UnitState]) -> DiskState:
    """The newest state that a unit's files give.

    Args:
        genesis: makes the state before the first commit in a thread. It is called if no generation is good.

    Raises:
        StorageError: there is none, or all are damaged; or as `genesis`.
    """
    best: DiskState | None = None
    problem = "none"
    for _ in range(_TRIES):
        refs = await tools.generations.list()
        logged = await tools.offload.run(partial(_logged, await tools.log.load()))
        found = await _newest(tools, refs, logged, genesis)
        if isinstance(found, str):
            problem = found
        elif best is None or found.state.index > best.state.index:
            best = found
        if best is not None and best.state.index == best.newest_index:
            return best
        if refs == await tools.generations.list():
            break
    if best is None:
        raise StorageError(f"no good state of {tools.unit} ({problem})", "one")
    return best


def _logged(rounds: LoggedRounds) -> _Logged:
    """Raises StorageError: the log is damaged. Its certificates were verified before they were logged."""
    try:
        links = [link_of(decode_certificate(raw).record) for _, raw in rounds.certificates]
    except RemoteProtocolError as error:
        raise StorageError(f"a log with {error.found}", error.expected, "use another folder") from error
    following = {link.parent: link for link in links}  # of two commits on one base the later entry is followed
    lineage, base = list[ChainLink](), links[0].parent if links else None
    while base in following:
        lineage.append(following[base])
        base = lineage[-1].commit
    return _Logged(tuple(lineage), attested_roots(links))


async def _newest(
    tools: UnitContext, refs: Sequence[GenerationRef], logged: _Logged, genesis: Callable[[], UnitState]
) -> DiskState | str:
    """The state after the newest good generation, or after the genesis where there is none; a sentence if neither gives one."""
    problem = "none"
    for ref in reversed(refs):
        found = await _from_generation(tools, ref, logged)
        if isinstance(found, DiskState):
            return found
        problem = found
    if logged.links and logged.links[0].index == 1 and await Updates(tools).read(logged.links[0]) is not None:
        state = await tools.offload.run(genesis)
        if state.head == logged.links[0].parent:
            return await _with_results(tools, logged, state, logged.links)
    return problem


async def _from_generation(tools: UnitContext, ref: GenerationRef, logged: _Logged) -> DiskState | str:
    try:
        state, root = await tools.generations.load(ref)
    except StorageError as error:
        return error.found
    following = logged.after(state.head)
    if following is None:
        return f"{ref.name} of {tools.unit} is of another lineage"
    if logged.attested.get(state.head, root) != root:
        return f"{ref.name} of {tools.unit} has another root than the run attests"
    return await _with_results(tools, logged, state, following)


async def _with_results(
    tools: UnitContext, logged: _Logged, state: UnitState, following: Sequence[ChainLink]
) -> DiskState | str:
    """The state after the commits that follow `state`, up to the first one without good results on disk. Reuses its memory."""
    updates = Updates(tools)
    for link in following:
        try:
            data = await updates.read(link)
            if data is None:
                break
            await updates.check(link, data)
        except (StorageError, RemoteProtocolError):
            break  # damaged or unreadable: the daemon deletes it and fetches it again
        state = await updates.step_in_place(state, link, data)
        attested = logged.attested.get(link.commit)
        if attested is not None and await updates.root(state) != attested:
            return f"the state of {tools.unit} at commit {link.index} has another root than the run attests"
    newest_index = logged.links[-1].index if logged.links else state.index
    return DiskState(state, await updates.root(state), state.head in logged.attested, newest_index)
