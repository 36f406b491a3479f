"""One plan for all ranks of a replica: layers compute alike on each, whatever its card would choose."""

from __future__ import annotations

from peer.training.plan.card_plan import CardPlan, Checkpointing
from peer.training.ranks.rank_group import RankGroup


def agreed_plan(plan: CardPlan, group: RankGroup) -> CardPlan:
    """The first rank's plan where this rank's card can do the same, and less where another one cannot: nothing compiled, moments as
    they are, float32 where precisions differ, and the strictest sparing of memory.
    """
    if group.size == 1:
        return plan
    first = CardPlan.model_validate_json(group.share(plan.model_dump_json().encode()))
    kept: tuple[Checkpointing, ...] = ("none", "selective", "full")
    return CardPlan(
        precision=first.precision if group.all(plan.precision == first.precision) else "fp32",
        is_compiled=group.all(plan.is_compiled),
        checkpointing=kept[int(group.largest(float(kept.index(plan.checkpointing))))],
        moments="int8" if group.all(plan.moments == "int8") else "exact",
        offload="none" if group.all(plan.offload == "none") else "moments",
    )
