"""The report on the card: from a training process to its daemon, and from the daemon to its owner."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from peer.training.plan.card_plan import CardPlan, Offload
from peer.training.plan.cards_core import CardKind
from peer.training.plan.plan_core import next_rung
from peer.training.plan.speed_core import utilisation


class CardReport(BaseModel):
    """How the card trains, and why.

    Attributes:
        may_be_int8: whether the run and this machine allow moments in 8 bits.
        most_away: the values that may lie in the machine's memory.
        reason: one sentence for the volunteer.
        expected_bytes: of the card with this plan, of its `usable_bytes`.
        used_bytes: the most that torch took of the card while it trained; 0 where this is not measured.
        flops_per_token: of forward and backward pass.
        peak_flops: FLOP/s of the card in this precision; None if that is not known.
        compile_note: why layers run eagerly although the plan compiles them; empty if they need no reason. The daemon adds this and
            `skipped_steps`, the steps that were not taken, because their gradient was not finite.
        source_tokens: tokens of each source that were trained on; the daemon adds them, too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan: CardPlan
    kind: CardKind
    may_be_int8: bool = False
    most_away: Offload = "all"
    reason: str = ""
    expected_bytes: int = 0
    usable_bytes: int = 0
    used_bytes: int = 0
    flops_per_token: int = 0
    peak_flops: float | None = None
    compile_note: str = ""
    skipped_steps: int = 0
    source_tokens: tuple[int, ...] = ()

    def next_rung(self, micro_batch: int) -> tuple[CardPlan, int] | None:
        """How to go on after running out of memory, as `plan_core.next_rung`."""
        may_be_int8, most_away = self.may_be_int8, self.most_away
        return next_rung(self.plan, micro_batch, self.kind, may_be_int8=may_be_int8, most_away=most_away)

    def mfu(self, tokens_per_s: float) -> float | None:
        """Model FLOPs utilisation at this speed, 0 to 1; None if it is not known."""
        return utilisation(tokens_per_s, self.flops_per_token, self.peak_flops)


def with_notes(
    report: CardReport | None, compile_note: str, skipped_steps: int = 0, source_tokens: tuple[int, ...] = ()
) -> CardReport | None:
    """A report of the training process with what its daemon has noted over all of its lives; None before there is one."""
    if report is None:
        return None
    notes = {"compile_note": compile_note, "skipped_steps": skipped_steps, "source_tokens": source_tokens}
    return report.model_copy(update=notes)
