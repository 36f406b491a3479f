"""How a commit, or a switch of lineages, changes the local parameters (R20 and R24): pure arithmetic.

**Mixing** (Streaming DiLoCo, 2501.18512, section 3.2: theta <- alpha theta + (1 - alpha) A') applies to fragments whose commit
came within the delay, in the chunks that counted our contribution. Write theta = A - D + u, where D is our contribution and u the
work since the snapshot. Mixing leaves A' - theta' = alpha (D - (A - A')) - alpha u to be offered next. So alpha of the work since
the snapshot stays in theta, and alpha of our own deviation from the outer step is offered again. If all members mix, these
deviations sum to what the outer step did not follow of the mean. The sum counts nothing twice; only one member's own share fades
more slowly.
- Not counted, or not covered: theta + (A' - A), as without mixing. Mixing would discard 1 - alpha of work that nobody has.
- Later than the delay: A' + (theta - theta_snapshot), as without mixing. Mixing would discard 1 - alpha of ever more work; so it
  never costs more than 1 - alpha of the delay's steps.
- Error feedback: D is not what was sent. The residual holds what the codec left out, and alpha of it must not be offered a second
  time. So alpha (D - deq(q)) goes back into theta, and the deviation is that of what was sent, alpha (deq(q) - (A - A')).
- If the run names no alpha, nothing is mixed: every counted commit is A' + (theta - theta_snapshot), and none is late. That
  trains better (tests/benchmarks/LOG.md): offering alpha of the deviation again costs quality.
- A restart, a crash of the training process and a switch do not mix: theta is A, or moves as a whole.

Rules: R20, R24, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import torch

from averaging.arithmetic.delta import pseudo_gradient
from averaging.arithmetic.error_feedback import Feedback
from averaging.arithmetic.vectors import new_vector
from averaging.codecs import Codec
from averaging.network.seams.interfaces import KeptPart
from averaging.rounds.lineage.head_state import AppliedCommit
from averaging.rounds.lineage.unit_chain import PreparedSwitch
from averaging.rounds.lineage.unit_feedback import counted_chunks, counts_of
from averaging.rounds.traffic.contribution import EncodedContribution
from protocol.errors import LocalProtocolError
from protocol.ids import PeerId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.schedule.proposal import consumed_tokens, covered_chunks
from protocol.tensors.tensor_schema import ChunkGrid


@dataclass(frozen=True)
class ParameterShift:
    """An update for the trainer: theta <- kept theta + shift.

    Attributes:
        shift_N: (N,) float32 to add to theta; None: load the new anchor, the local work cannot be kept.
        credited_tokens: to subtract from the tokens ready; negative when work of an abandoned lineage is to be offered again.
        remark: what could not be kept, for the log; "" if everything was.
        feedback: the residual after a switch; None without error feedback.
        kept: the share of theta that stays, by chunk; all of it in chunks that are not named.
    """

    shift_N: torch.Tensor | None
    credited_tokens: int
    remark: str = ""
    feedback: Feedback | None = None
    kept: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mixing:
    """Mixing of commits: one that comes at most `delay_tokens` of our own after the snapshot is mixed, and `alpha` of theta
    stays. The tokens are those of each replica that we train.
    """

    alpha: float
    delay_tokens: int


@dataclass(frozen=True, slots=True)
class Mixed:
    """Mix with `alpha`; `codec` is that of contributions with error feedback, None without."""

    alpha: float
    codec: Codec | None


class AdoptionShift:
    """The shift of the local parameters (R20). In chunks that counted our contribution it is A' - theta_snapshot, so that only
    the work since the snapshot remains on top of A'. Elsewhere it is A' - A, so that uncounted work is kept.

    Args:
        room: gives a place for the shift, (N,) float32, or None. Asked where there is no snapshot that may be overwritten.

    Attributes:
        shift_N: (N,) float32. It takes the place of the snapshot if that may be overwritten.
    """

    def __init__(
        self,
        record: CommitRecord,
        me: PeerId,
        contribution: EncodedContribution | None,
        grid: ChunkGrid,
        room: Callable[[], torch.Tensor | None] = lambda: None,
    ) -> None:
        is_counted = _is_counted(record, me, contribution)
        self._theta_N = contribution.theta_N if contribution is not None and is_counted else None
        covered = covered_chunks(record, me) if is_counted else ()
        self._counted = tuple(slice(*grid.span(first, stop)) for first, stop in covered)
        if contribution is not None and contribution.may_overwrite_theta:
            self.shift_N = contribution.theta_N
        else:
            room_N = room()
            self.shift_N = new_vector(grid.num_elements) if room_N is None else room_N

    def seen(self, span: slice, before_n: torch.Tensor, after_n: torch.Tensor) -> None:
        """Make the shift of a part, none of which lies in two slices: its anchor before and after the commit, (n,) float32 each."""
        is_counted = any(counted.start <= span.start and span.stop <= counted.stop for counted in self._counted)
        from_n = self._theta_N[span] if self._theta_N is not None and is_counted else before_n
        torch.sub(after_n, from_n, out=self.shift_N[span])


class NoShift:
    """For a commit that comes while there is no theta: the trainer loads the anchor once it is ready, so no vector is made for it."""

    shift_N: torch.Tensor | None = None

    def seen(self, span: slice, before_n: torch.Tensor, after_n: torch.Tensor) -> None:
        """Nothing is made of it."""


def adoption_shift(
    applied: AppliedCommit,
    record: CommitRecord,
    me: PeerId,
    contribution: EncodedContribution | None,
    grid: ChunkGrid,
) -> torch.Tensor:
    """The `shift_N` of `AdoptionShift`, made now if it was not made with the commit. Zeros for a rewind (R28), which moves no vector.

    Raises:
        LocalProtocolError: a commit that has neither its shift nor the anchor before it.
    """
    if applied.shift_N is not None:
        return applied.shift_N
    before_N, after_N = applied.previous_anchor_N, applied.state.anchor_N
    if record.rewind:
        return torch.zeros(grid.num_elements)
    if before_N is None:
        raise LocalProtocolError(
            "a commit without the anchor before it", "the anchor, or the shift that was made of it"
        )
    making = AdoptionShift(record, me, contribution, grid)
    for part in record.slices:
        span = slice(*grid.span(part.first_chunk, part.stop_chunk))
        making.seen(span, before_N[span], after_N[span])
    return making.shift_N


def _is_counted(record: CommitRecord, me: PeerId, contribution: EncodedContribution | None) -> bool:
    entry = record.contributor(me)
    return entry is not None and contribution is not None and entry.root == contribution.root


def adopt_commit(
    applied: AppliedCommit,
    record: CommitRecord,
    me: PeerId,
    contribution: EncodedContribution | None,
    grid: ChunkGrid,
    mixed: Mixed | None = None,
) -> ParameterShift:
    """The shift of one commit on our lineage; with `mixed`, chunks that counted our contribution are mixed into theta. A commit that
    came while there was no theta loads its anchor.
    """
    if applied.shift_N is None and applied.previous_anchor_N is None:
        return ParameterShift(None, 0)
    is_ours = _is_counted(record, me, contribution)
    if mixed is not None and contribution is not None:
        contribution = replace(contribution, may_overwrite_theta=False)  # it is mixed in after the shift was made
    shift_N = adoption_shift(applied, record, me, contribution, grid)
    kept: dict[int, float] = {}
    if mixed is not None and is_ours and contribution is not None:
        for first, stop in covered_chunks(record, me):
            kept |= dict.fromkeys(range(first, stop), mixed.alpha)
            _mix(shift_N, applied, contribution, range(first, stop), grid, mixed)
    return ParameterShift(shift_N, consumed_tokens(record, me) if is_ours else 0, kept=kept)


def _mix(
    shift_N: torch.Tensor,
    applied: AppliedCommit,
    contribution: EncodedContribution,
    chunks: range,
    grid: ChunkGrid,
    mixed: Mixed,
) -> None:
    """Write (1 - alpha) A' into the shift of these chunks; with error feedback add alpha (D - deq(q))."""
    before_N = applied.previous_anchor_N
    if before_N is None:
        raise LocalProtocolError("a commit to be mixed without the anchor before it", "both anchors")
    span = slice(*grid.span(chunks.start, chunks.stop))
    torch.mul(applied.state.anchor_N[span], 1.0 - mixed.alpha, out=shift_N[span])
    if mixed.codec is None:
        return
    for chunk in chunks:
        begin, stop = grid.bounds(chunk)
        delta_n = pseudo_gradient(before_N[begin:stop], contribution.theta_N[begin:stop])
        unsent_n = torch.sub(delta_n, mixed.codec.decode(contribution.chunks[chunk], stop - begin))
        shift_N[begin:stop] = torch.add(shift_N[begin:stop], torch.mul(unsent_n, mixed.alpha))


def one_after_another(first: ParameterShift, second: ParameterShift, grid: ChunkGrid) -> ParameterShift:
    """Two shifts as one: k2 (k1 theta + s1) + s2, in the memory of the first. If one of them loads an anchor, the result loads it."""
    if first.shift_N is None or second.shift_N is None:
        return second if second.shift_N is None else first
    shift_N = first.shift_N
    for chunk, share in second.kept.items():
        shift_N[slice(*grid.bounds(chunk))].mul_(share)
    both = first.kept.keys() | second.kept.keys()
    kept = {chunk: first.kept.get(chunk, 1.0) * second.kept.get(chunk, 1.0) for chunk in both}
    credited = first.credited_tokens + second.credited_tokens
    return ParameterShift(shift_N.add_(second.shift_N), credited, kept=kept)


def kept_parts(kept: Mapping[int, float], grid: ChunkGrid) -> tuple[KeptPart, ...]:
    """Shares of theta by chunk as the trainer takes them: neighbours with the same share are merged."""
    parts: list[KeptPart] = []
    for chunk, share in sorted(kept.items()):
        begin, stop = grid.bounds(chunk)
        if parts and (parts[-1].stop, parts[-1].share) == (begin, share):
            begin = parts.pop().begin
        parts.append(KeptPart(begin, stop, share))
    return tuple(parts)


def adopt_switch(
    prepared: PreparedSwitch,
    lost: Sequence[ChainLink],
    anchor_N: torch.Tensor,
    me: PeerId,
    offers: Mapping[Root, EncodedContribution],
    codec: Codec,
    grid: ChunkGrid,
    feedback: Feedback | None = None,
) -> ParameterShift:
    """The shift of a switch of lineages: theta <- A_win - (A_fork - theta), tokens ready = own since the fork (R24).

    A contribution of ours that the winning lineage counted is already in A_win, so it is taken out of theta. If its bytes are
    gone, theta starts from A_win: work may be lost, but none is applied twice. Without the anchor at the fork only the work since
    the last commit is offered again.

    A rewind of the host (R28) that takes commits of ours back takes the local work since then along: it was done on a model that the
    run gives up, and theta holds the work of others there, too.

    Args:
        lost: our commits after the fork, which are abandoned.
        anchor_N: (N,) float32, the anchor at our head.
        offers: our latest contributions by root.
    """
    if lost and prepared.path[0].link.rewind:
        rest = feedback.without(range(grid.num_chunks)) if feedback is not None else None
        return ParameterShift(
            None, 0, f"the host took {len(lost)} rounds back: starting from its last good commit", rest
        )
    from_N = prepared.fork_anchor_N
    lost_chunks = counted_chunks(lost, me)
    regained = sum(consumed_tokens(link.record, me) for link in lost if link.record is not None)
    remark = ""
    taken_out: dict[Root, set[int]] = {}
    if from_N is None:
        from_N, regained = anchor_N, 0
        remark = "the anchor at the fork is gone: only the work since the last commit is offered again"
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
        remark = "the other lineage counted work of ours that is gone: starting from its anchor"
        return ParameterShift(None, 0, remark, feedback)
    return ParameterShift(shift_N, spent - regained, remark, feedback)


def _carried(feedback: Feedback, root: Root, chunks: AbstractSet[int], shift_N: torch.Tensor) -> Feedback:
    """The residual after a switch to a lineage that counted these chunks of a contribution, which the abandoned one did not.

    The contribution carried the residual. It becomes what was pending of it, else zero, and `shift_N` takes the difference. Then
    what theta offers and what the residual holds lack together only what was counted, and either can be lost without the other.
    """
    after = feedback.counted(root, chunks)
    for chunk in feedback.moved_by(root, chunks):
        begin, stop = feedback.grid.bounds(chunk)
        fed_n = torch.mul(feedback.residual.values_N[begin:stop], feedback.beta)
        difference_n = torch.sub(after.residual.values_N[begin:stop], fed_n)
        shift_N[begin:stop] = torch.add(shift_N[begin:stop], difference_n)
    return after
