"""Members and voters of a round if more peers are here than it takes. Pure functions of the chain.

A round takes at most `max_members`. The peers that were not counted for the most commits go first, so everybody has a turn (R7). The
chain tells that, not a peer's word. Votes are not handed on with the places: most voters stay, though they do not take part, and the
others are drawn among the contributors (R3). No leader chooses them.

A peer that waits for its turn trains on, and its delta grows. A mean of such deltas moves the model further than all peers together
went in one round, by the number of rounds between two turns. So the outer step is divided by that number (R20), as if the weights of
the waiting peers, with deltas of zero, were in the sum as well. Otherwise updates of peers that do not see one another's work add up
(asynchronous local SGD, 2401.09135).

Rules: R3, R7, R20 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from protocol.ids import PeerId, short
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.quorum import by_hash
from protocol.rounds.lineage.rule_numbers import takes_turns, version_of
from protocol.rounds.messages.record import CommitRecord

TURNS_WITHIN: Final = 256
"""Commits behind the head in which a peer's last turn is looked for. With 64 members they are the turns of 16,384 peers.
They are fewer than NUM_WHOLE (lineage.py), so their links are whole.
"""


# --- who takes part -----------------------------------------------------------------------------------------------------------


def last_counted(links: Iterable[ChainLink]) -> Mapping[PeerId, int]:
    """The newest of these commits that counts each peer, by its index. `links` begin with the newest; TURNS_WITHIN are looked at."""
    found: dict[PeerId, int] = {}
    for link in islice(links, TURNS_WITHIN):
        for entry in link.record.contributors if link.record is not None else ():
            found.setdefault(entry.peer, link.index)
    return found


def by_turn(ready: Mapping[PeerId, int], counted: Mapping[PeerId, int], index: int, room: int) -> list[PeerId]:
    """These peers in the order in which they take part: whoever waits longest first. Equals are drawn by the round and their ids: the
    tokens that a peer says it has would put a liar first, and votes go to those who take part. Peers without tokens come last: they
    wait for nothing.

    Args:
        ready: the tokens that each peer has ready, by its own word.
        counted: as `last_counted`. A peer that is not in it counts as if it had waited for one turn of all: else newcomers would
            always be first, and many of them would keep the others out.
        index: of the head.
        room: how many a round takes.
    """
    newcomer = index - -(-len(ready) // max(1, room))
    drawn_at = {peer: rank for rank, peer in enumerate(by_hash(b"turn" + index.to_bytes(8, "big"), ready))}
    return sorted(ready, key=lambda peer: (ready[peer] == 0, counted.get(peer, newcomer), drawn_at[peer]))


# --- how far their mean moves the model ---------------------------------------------------------------------------------------


def rounds_a_turn(links: Iterable[ChainLink], divided_by: int) -> int:
    """Rounds between two turns of one peer, as the newest commit shows it: the median over its contributors. 1 where everybody fits.

    Args:
        links: a base and its ancestors, newest first; TURNS_WITHIN are looked at.
        divided_by: what the base's own outer step was divided by. A peer that no earlier commit counts has waited at least as long
            as those in the round before its own, so it counts as one more.
    """
    newest, *earlier = islice(links, TURNS_WITHIN)
    if not takes_turns(newest.rules) or newest.record is None or newest.rewind:
        return 1
    counted = last_counted(earlier)
    waited = sorted(
        newest.index - counted[entry.peer] if entry.peer in counted else divided_by + 1
        for entry in newest.record.contributors
    )
    return max(1, min(TURNS_WITHIN, waited[len(waited) // 2]))


# --- who votes ----------------------------------------------------------------------------------------------------------------


def drawn(parent: ChainLink, peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Peers in the order in which they come to vote. The hash names the commit before the base: the base's own leader could try
    records until the order suits it.
    """
    prefix = b"voter" + (parent.parent or parent.commit)
    return by_hash(prefix, peers)


def roster_by_turns(
    parent: ChainLink,
    contributors: Sequence[PeerId],
    standing: Sequence[PeerId],
    here: Sequence[PeerId],
    fewest: int,
    room: int,
) -> tuple[PeerId, ...]:
    """The next voters where contributors and voters are too many: those who do both, `fewest` of the parent's in all, and then as many
    contributors as there is room for, in the drawn order.

    Args:
        standing: voters of the parent that did not leave.
        here: those of them that are heard; the others stay only where these are fewer than `fewest`.
    """
    both = [peer for peer in standing if peer in contributors]
    others = [peer for peer in drawn(parent, here) if peer not in both]
    silent = [peer for peer in drawn(parent, standing) if peer not in both and peer not in here]
    kept = [*both, *[*others, *silent][: max(0, fewest - len(both))]]
    new = [peer for peer in drawn(parent, contributors) if peer not in parent.roster]
    chosen = [*kept, *new[: max(0, room - len(kept))]]
    chosen += [peer for peer in others if peer not in chosen][: max(0, room - len(chosen))]
    return tuple(sorted(chosen))


def left_out(contributors: Iterable[PeerId], roster: Collection[PeerId], left: Collection[PeerId]) -> list[PeerId]:
    """Contributors that do not vote next, though they did not say goodbye. `roster`: the voters of the next round."""
    return [peer for peer in contributors if peer not in roster and peer not in left]


def keeps_voters(parent: ChainLink, roster: Collection[PeerId], fewest: int) -> bool:
    """Whether at least `fewest` of the parent's voters vote on."""
    return sum(peer in roster for peer in parent.roster) >= fewest


def turns_problem(
    parent: ChainLink, record: CommitRecord, eligible: Sequence[PeerId], left: Collection[PeerId], fewest: int
) -> str:
    """Why contributors may not be left out of the next roster as they are; empty where they may. `left`, `fewest`: as in
    `roster_by_turns` and record_rules.py. `eligible`: the contributors that may vote at all.
    """
    roster, voters = frozenset(record.roster), frozenset(parent.roster)
    out = left_out(eligible, roster, left)
    if not out:
        needless, version = takes_turns(record.rules) and not takes_turns(parent.rules), version_of(record.rules)
        return f"rules {version} for a record that leaves nobody out of the voters; expected fewer" if needless else ""
    if not takes_turns(record.rules):
        return f"{short(out[0])} contributed and is not to vote next; nobody who takes part is left out"
    if any(peer in voters for peer in out):
        return f"{short(next(p for p in out if p in voters))} voted and contributed, and is not to vote next"
    if len(roster) < len(eligible):
        return f"{len(roster)} are to vote next and contributors are left out; expected {len(eligible)} at least"
    if not keeps_voters(parent, roster, fewest):
        return f"contributors take the votes of too many; expected at least {fewest} of {len(voters)} voters to stay"
    order = drawn(parent, (peer for peer in eligible if peer not in voters))
    new = tuple(peer for peer in order if peer in roster)
    if new != order[: len(new)]:
        return f"{short(next(p for p in order if p not in roster))} was drawn as a voter and is left out"
    return ""
