"""What a peer says when it starts again on what it had: where it stands, and what of it was lost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.ids import CommitId, UnitName
from protocol.rounds.lineage.lineage import CommitTree, best_head


@dataclass(frozen=True, slots=True)
class Restored:
    """What a start found on the disk.

    Attributes:
        head_index: the round whose state is whole here.
        best_index: the end of the best lineage that the disk has certificates of.
        common_index: the newest round that is behind both.
        num_damaged: generations that were passed over, for they are damaged or not what the run attests.
        generation_index: the round of the generation that was taken, 0 for the start state.
    """

    head_index: int
    best_index: int
    common_index: int
    num_damaged: int = 0
    generation_index: int = 0


def restored(tree: CommitTree, head: CommitId, *, num_damaged: int = 0, generation_index: int = 0) -> Restored:
    """How the state at `head` stands to the commits that the disk proves. Another lineage's rounds are other work, whatever their
    numbers.
    """
    best = best_head(tree)
    common = tree.common(head, best)
    return Restored(
        head_index=tree.nodes[head].link.index,
        best_index=tree.nodes[best].link.index,
        common_index=tree.nodes[common if common is not None else tree.root].link.index,
        num_damaged=num_damaged,
        generation_index=generation_index,
    )


def restart_sentence(found: Restored) -> str:
    """One sentence for its owner."""
    return f"restarted at round {found.head_index}; {_loss(found)}{_damage(found)}"


def units_sentence(found: Mapping[UnitName, Restored | None]) -> str:
    """One sentence on all units of which something was expected here, the spine first; None for one of which nothing was found. Of the
    others only what was lost or damaged is told.
    """
    spine = next(iter(found))
    told: list[str] = []
    for unit, part in found.items():
        if part is None:
            told.append(f"nothing of {unit} was here: it comes from other peers, if any has it")
        elif unit == spine:
            told.append(restart_sentence(part))
        elif part.best_index != part.common_index or part.num_damaged:
            told.append(f"{unit} {restart_sentence(part)}")
    return "; ".join(told)


def _loss(found: Restored) -> str:
    head, best, common = found.head_index, found.best_index, found.common_index
    if best == common:
        return "nothing was lost but steps that no round had counted"
    if head == common:
        return f"work since round {head} was lost here: what rounds up to {best} need comes from other peers, if any has it"
    rounds = "round" if best - common == 1 else "rounds"
    return (
        f"other commits after round {common} are better, and the {best - common} {rounds} of theirs were lost here: what they need "
        "comes from other peers, if any has it"
    )


def _damage(found: Restored) -> str:
    if not found.num_damaged:
        return ""
    generations = "generation was" if found.num_damaged == 1 else "generations were"
    began = f"the one of round {found.generation_index}" if found.generation_index else "the start state"
    return f"; {found.num_damaged} damaged {generations} passed over for {began}"
