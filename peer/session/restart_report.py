"""The report of a restarted peer: its resumed round and any losses. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.ids import CommitId, UnitName
from protocol.rounds.lineage.lineage import CommitTree, best_head


@dataclass(frozen=True, slots=True)
class Restored:
    """The state that a start found on the disk.

    Attributes:
        head_index: the round whose state is complete here.
        best_index: the end of the best lineage that the disk has certificates of.
        common_index: the newest round common to both lineages.
        num_damaged: generations that were skipped because they are damaged or not attested by the run.
        generation_index: the round of the loaded generation, 0 for the start state.
    """

    head_index: int
    best_index: int
    common_index: int
    num_damaged: int = 0
    generation_index: int = 0


def restored(tree: CommitTree, head: CommitId, *, num_damaged: int = 0, generation_index: int = 0) -> Restored:
    """Compare the state at `head` with the commits that the disk proves. Rounds of another lineage do not count, even with equal
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
    """One sentence for the owner."""
    return f"restarted at round {found.head_index}; {_loss(found)}{_damage(found)}"


def units_sentence(found: Mapping[UnitName, Restored | None]) -> str:
    """One sentence on all expected units, the spine first; None for a unit of which nothing was found. Other units are mentioned
    only if something was lost or damaged.
    """
    spine = next(iter(found))
    sentences: list[str] = []
    for unit, part in found.items():
        if part is None:
            sentences.append(f"nothing of {unit} was here: it is fetched from other peers, if any has it")
        elif unit == spine:
            sentences.append(restart_sentence(part))
        elif part.best_index != part.common_index or part.num_damaged:
            sentences.append(f"{unit} {restart_sentence(part)}")
    return "; ".join(sentences)


def _loss(found: Restored) -> str:
    head, best, common = found.head_index, found.best_index, found.common_index
    if best == common:
        return "nothing was lost but steps that no round had counted"
    if head == common:
        return f"work since round {head} was lost here: the rounds up to {best} are fetched from other peers, if any has them"
    rounds = "round" if best - common == 1 else "rounds"
    return (
        f"other commits after round {common} are better, and the {best - common} {rounds} of theirs were lost here: they are fetched "
        "from other peers, if any has them"
    )


def _damage(found: Restored) -> str:
    if not found.num_damaged:
        return ""
    generations = "generation was" if found.num_damaged == 1 else "generations were"
    began = f"the one of round {found.generation_index}" if found.generation_index else "the start state"
    return f"; {found.num_damaged} damaged {generations} skipped in favour of {began}"
