"""States of a unit at commits of its lineage, made from what is on this disk.

Rules: R19, R21 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from averaging.rounds.lineage.retention import first_state
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.state.state import UnitState
from protocol.ids import CommitId
from protocol.rounds.lineage.chain import attested_roots


async def recomputed(chain: UnitChain) -> UnitState | None:
    """The state at a commit of ours with the root that the run attests, from our own disk; None if the log's root differs."""
    tools, places = chain.tools, {link.commit: place for place, link in enumerate(chain.links)}
    attested = {commit: root for commit, root in attested_roots(chain.links).items() if commit in places}
    newest = await tools.generations.load_newest(attested, attested)
    state = newest[0] if newest is not None else await first_state(chain.genesis, tools, chain.line.root)
    if state is None:
        return None
    last = max((places[commit] for commit in attested), default=0)
    for link in chain.links[places[state.head] : last + 1]:
        if link.commit != state.head:
            data = await chain.updates.read_good(link)
            if data is None:
                return None
            state = await chain.updates.step_in_place(state, link, data)
        if link.commit in attested and await chain.updates.root(state) != attested[link.commit]:
            return None  # the same arithmetic fails again: get the state from other peers
    return state if state.head in attested else None


async def state_at(chain: UnitChain, commit: CommitId) -> UnitState | None:
    """The state at a commit of a chain's lineage, lent or rebuilt; None if that is not possible."""
    async with chain.moving:  # no step is being made
        if commit == chain.state.head:
            return None if chain.held.is_torn else chain.held.lend_while_used()
    return await rebuilt(chain, commit)


async def rebuilt(chain: UnitChain, commit: CommitId) -> UnitState | None:
    """The state at a commit of a chain's lineage from what is on disk; None if that does not reach back so far."""
    position, tools = chain.line.place(commit), chain.tools
    if position is None:
        return None
    before = [link.commit for link in chain.links[: position + 1]]
    newest = await tools.generations.load_newest(before, attested_roots(chain.links))
    state = newest[0] if newest is not None else await first_state(chain.genesis, tools, chain.line.root)
    if state is None:
        return None
    for link in chain.links[before.index(state.head) + 1 : position + 1]:
        data = await chain.updates.read_good(link)
        if data is None:
            return None
        state = await chain.updates.step_in_place(state, link, data)
    return state
