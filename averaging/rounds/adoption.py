"""What a commit, or a switch of lineages, means for the local parameters (rules 20 and 24): pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch

from averaging.codecs import Codec
from averaging.error_feedback import Feedback
from averaging.rounds.contribution import EncodedContribution
from averaging.rounds.feedback import counted_chunks, counts_of
from averaging.rounds.unit import AppliedCommit, PreparedSwitch
from averaging.vectors import new_vector
from protocol.ids import PeerId, Root
from protocol.rounds.chain import ChainLink
from protocol.rounds.messages import CommitRecord
from protocol.rounds.plan import consumed_tokens, covered_chunks
from protocol.tensor_schema import ChunkGrid


@dataclass(frozen=True)
class Adoption:
    """What to tell the trainer.

    Attributes:
        shift_N: (N,) float32 to add to theta; None: load the new anchor, the local work cannot be kept.
        credited_tokens: to take off the tokens ready; negative when work of a lineage that lost is to be offered again.
        remark: what could not be kept, for the log; "" when everything was.
        feedback: what a switch made of the residual; None without error feedback.
    """

    shift_N: torch.Tensor | None
    credited_tokens: int
    remark: str = ""
    feedback: Feedback | None = None


def adoption_shift(
    applied: AppliedCommit, record: CommitRecord, me: PeerId, theta_N: torch.Tensor | None, grid: ChunkGrid
) -> torch.Tensor:
    """What to add to the local parameters (rule 20), (N,) float32: A' - theta_snapshot where our contribution was counted, so
    that only the work since the snapshot remains on top of A'; A' - A elsewhere, so that uncounted work is kept.
    """
    anchor_N, shift_N = applied.state.anchor_N, new_vector(grid.num_elements)
    covered = covered_chunks(record, me) if theta_N is not None else ()
    for part in record.slices:
        begin, stop = grid.span(part.first_chunk, part.stop_chunk)
        is_counted = (part.first_chunk, part.stop_chunk) in covered
        from_N = theta_N if theta_N is not None and is_counted else applied.previous_anchor_N
        torch.sub(anchor_N[begin:stop], from_N[begin:stop], out=shift_N[begin:stop])
    return shift_N


def adopt_commit(
    applied: AppliedCommit, record: CommitRecord, me: PeerId, contribution: EncodedContribution | None, grid: ChunkGrid
) -> Adoption:
    """One more commit on our lineage."""
    entry = record.contributor(me)
    is_ours = entry is not None and contribution is not None and entry.root == contribution.root
    theta_N = contribution.theta_N if is_ours and contribution is not None else None
    shift_N = adoption_shift(applied, record, me, theta_N, grid)
    return Adoption(shift_N, consumed_tokens(record, me) if is_ours else 0)


def adopt_switch(
    prepared: PreparedSwitch,
    lost: Sequence[ChainLink],
    anchor_N: torch.Tensor,
    me: PeerId,
    offers: Mapping[Root, EncodedContribution],
    codec: Codec,
    grid: ChunkGrid,
    feedback: Feedback | None = None,
) -> Adoption:
    """Another lineage: theta <- A_win - (A_fork - theta), tokens ready = own since the fork (rule 24).

    Where a commit of the winning lineage counted a contribution of ours, that is in A_win and taken out of theta; where its bytes are
    no longer here, theta starts from A_win: work may be lost, but none is ever applied twice. Without the anchor at the fork only
    the work since the last commit is offered again.

    Args:
        lost: our commits after the fork, which are given up.
        anchor_N: (N,) float32, the anchor at our head.
        offers: our latest contributions by root.
    """
    from_N = prepared.fork_anchor_N
    lost_chunks = counted_chunks(lost, me)
    regained = sum(consumed_tokens(link.record, me) for link in lost if link.record is not None)
    remark = ""
    taken_out: dict[Root, set[int]] = {}
    if from_N is None:
        from_N, regained = anchor_N, 0
        remark = "the anchor at the fork is no longer kept: only the work since the last commit is offered again"
        taken_out = lost_chunks
    shift_N = torch.sub(prepared.state.anchor_N, from_N)
    spent, is_here = 0, True
    for node in prepared.path:
        for root, chunks in counts_of([node.link], me):
            offer, taken = offers.get(root), chunks - taken_out.get(root, set())
            if offer is None:
                is_here = False
            else:
                for chunk in taken:
                    begin, stop = grid.bounds(chunk)
                    shift_N[begin:stop] = torch.add(
                        shift_N[begin:stop], codec.decode(offer.chunks[chunk], stop - begin)
                    )
                spent += offer.tokens * len(taken) // grid.num_chunks
            if feedback is not None:
                feedback = _carried(feedback, root, chunks - lost_chunks.get(root, set()), shift_N)
    if not is_here:
        remark = "the other lineage counted work of ours that is no longer here: starting from its anchor"
        return Adoption(None, 0, remark, feedback)
    return Adoption(shift_N, spent - regained, remark, feedback)


def _carried(feedback: Feedback, root: Root, chunks: AbstractSet[int], shift_N: torch.Tensor) -> Feedback:
    """The residual after another lineage counted these chunks of a contribution, which the one that was left did not. It went out
    with that contribution, and becomes what was pending of it, else zero. `shift_N` takes the difference: what theta offers and what
    the residual holds are, together, short of what was counted and of nothing else, and either can be lost without the other.
    """
    after = feedback.counted(root, chunks)
    for chunk in feedback.moved_by(root, chunks):
        begin, stop = feedback.grid.bounds(chunk)
        fed_n = torch.mul(feedback.residual.values_N[begin:stop], feedback.beta)
        difference_n = torch.sub(after.residual.values_N[begin:stop], fed_n)
        shift_N[begin:stop] = torch.add(shift_N[begin:stop], difference_n)
    return after
