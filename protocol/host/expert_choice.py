"""Who holds which experts: the same answer at everybody who knows the same peers, in whole numbers alone.

Who has decided is counted. Those who have not take their turn in the order of their peer ids, each the expert that the fewest hold,
the lowest number among equals; then, while an expert is held by nobody, whoever has room for one more takes it. So the founders of a
run are shared out by the host, and who joins later finds its own place, also where several join at once: they see each other
undecided.

What is said and not shown may be a lie, or the truth of somebody who is still downloading. Were it worth nothing, all who come while
the first one downloads would take the one expert that the run lacks; were it worth as much as what was shown, a liar could keep an
expert without holders. So half of all peers, by a hash of their ids, count what is said, and the others only between equals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from protocol.errors import ConfigError
from protocol.ids import PeerId


@dataclass(frozen=True, slots=True)
class Holding:
    """What a peer holds, nothing where it has not decided, and how many experts it has room for."""

    experts: tuple[int, ...] = ()
    room: int = 1


def share_out(
    num_experts: int, peers: Mapping[PeerId, Holding], claims: Sequence[int] = ()
) -> dict[PeerId, tuple[int, ...]]:
    """The experts of all peers, in the order of their numbers; those of who has decided are what they were.

    Args:
        claims: how many more say of each expert that they hold it, and have not shown it. Half of the peers (`believes_claims`) count
            them, of equals the one that fewer have shown to hold; to the others they decide between experts that as many hold.
    """
    counts = [0] * num_experts
    held = {peer: list(peers[peer].experts) for peer in sorted(peers)}
    undecided = [peer for peer, experts in held.items() if not experts]
    for experts in held.values():
        for expert in experts:
            if 0 <= expert < num_experts:
                counts[expert] += 1
    turns = undecided
    while turns:
        for peer in turns:
            others = [expert for expert in range(num_experts) if expert not in held[peer]]
            said = claims or [0] * num_experts
            worth = int(believes_claims(peer))
            ranks = [(counts[one] + worth * said[one], counts[one], said[one], one) for one in others]
            expert = min(ranks)[-1]
            if held[peer] and counts[expert]:
                break  # every expert has a holder
            held[peer].append(expert)
            counts[expert] += 1
        else:
            turns = [peer for peer in turns if len(held[peer]) < min(peers[peer].room, num_experts)]
            continue
        break
    return {peer: tuple(sorted(experts)) for peer, experts in held.items()}


def believes_claims(peer: PeerId) -> bool:
    """Whether this peer counts holders that have shown nothing as if they had: every other one, by its id."""
    return sha256(peer.encode()).digest()[0] % 2 == 0


def holders(num_experts: int, held: Mapping[PeerId, Sequence[int]]) -> tuple[tuple[PeerId, ...], ...]:
    """The peers of each expert, sorted."""
    return tuple(tuple(sorted(p for p, experts in held.items() if expert in experts)) for expert in range(num_experts))


def parse_experts(text: str) -> tuple[int, ...]:
    """Experts as their owner writes them, "0,1", in the order of their numbers.

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
    """Whether a run's peer may hold these, as its owner says.

    Args:
        num_experts: of the run; 0 of one without experts.
        holdings: that a peer of the run holds at most.

    Raises:
        ConfigError: an expert that the run has not, or more than a peer holds.
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
