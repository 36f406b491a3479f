"""The choice of each peer's experts: peers that know the same others come to the same answer, in whole numbers alone.

Peers that have decided are counted. The others take turns in the order of their peer ids. Each takes the expert that the fewest
hold, the lowest number among equals. Then, while an expert has no holder, a peer with room for one more takes it. So the host
shares out the founders, and later peers find their own places, even if several join at once: they see each other undecided.

A claim without proof may be a lie, or come from a peer that is still downloading. If claims counted nothing, all peers that join
while the first one downloads would take the one expert that the run lacks. If they counted as much as proofs, a liar could keep an
expert without holders. So half of all peers, by a hash of their ids, count claims; the others use them only to decide between
equals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from protocol.errors import ConfigError
from protocol.ids import PeerId


@dataclass(frozen=True, slots=True)
class Holding:
    """The experts of a peer, none if it has not decided, and how many it has room for."""

    experts: tuple[int, ...] = ()
    room: int = 1


def share_out(
    num_experts: int, peers: Mapping[PeerId, Holding], claims: Sequence[int] = ()
) -> dict[PeerId, tuple[int, ...]]:
    """The experts of all peers, in the order of their numbers; peers that have decided keep theirs.

    Args:
        claims: for each expert, how many more peers claim it without proof. Half of the peers (`believes_claims`) count them, and
            prefer the one with fewer proven holders among equals; the others only use them to decide between equals.
    """
    counts = [0] * num_experts
    chosen = {peer: list(peers[peer].experts) for peer in sorted(peers)}
    undecided = [peer for peer, experts in chosen.items() if not experts]
    for experts in chosen.values():
        for expert in experts:
            if 0 <= expert < num_experts:
                counts[expert] += 1
    turns = undecided
    while turns:
        for peer in turns:
            others = [expert for expert in range(num_experts) if expert not in chosen[peer]]
            said = claims or [0] * num_experts
            worth = int(believes_claims(peer))
            ranks = [(counts[one] + worth * said[one], counts[one], said[one], one) for one in others]
            expert = min(ranks)[-1]
            if chosen[peer] and counts[expert]:
                break  # every expert has a holder
            chosen[peer].append(expert)
            counts[expert] += 1
        else:
            turns = [peer for peer in turns if len(chosen[peer]) < min(peers[peer].room, num_experts)]
            continue
        break
    return {peer: tuple(sorted(experts)) for peer, experts in chosen.items()}


def believes_claims(peer: PeerId) -> bool:
    """Whether this peer counts claims like proofs: half of the peers do, by their ids."""
    return sha256(peer.encode()).digest()[0] % 2 == 0


def holders(num_experts: int, held: Mapping[PeerId, Sequence[int]]) -> tuple[tuple[PeerId, ...], ...]:
    """The peers of each expert, sorted."""
    return tuple(tuple(sorted(p for p, experts in held.items() if expert in experts)) for expert in range(num_experts))


def parse_experts(text: str) -> tuple[int, ...]:
    """Experts as their owner writes them, such as "0,1", in the order of their numbers.

    Raises:
        ConfigError: anything else, or one of them twice.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) <= 4 for word in words):
        raise ConfigError(f"peer setting expert is {text[:60]!r}", 'numbers of experts, as "0" or "0,1"')
    numbers = sorted(int(word) for word in words)
    if len(set(numbers)) != len(numbers):
        raise ConfigError(f"peer setting expert is {text[:60]!r}", "each expert once")
    return tuple(numbers)


def check_experts(experts: Sequence[int], num_experts: int, holdings: int) -> None:
    """Check that a peer of the run may hold these experts, as its owner asks.

    Args:
        num_experts: of the run; 0 for a run without experts.
        holdings: the most that a peer of the run holds.

    Raises:
        ConfigError: an expert that the run lacks, or more than a peer holds.
    """
    if not experts:
        return
    if not num_experts:
        raise ConfigError(f"expert {experts[0]} of a run without experts", "none", "leave --expert out")
    if experts[-1] >= num_experts:
        raise ConfigError(
            f"expert {experts[-1]} of a run of {num_experts}", f"0 to {num_experts - 1}", "correct --expert"
        )
    if len(experts) > holdings:
        raise ConfigError(f"{len(experts)} experts", f"at most {holdings} in this run", "name fewer with --expert")
