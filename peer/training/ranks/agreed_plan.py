"""One plan for all ranks of a replica: layers compute alike on each, whatever its card would choose."""

from __future__ import annotations

from typing import get_args

from peer.training.plan.card_plan import CardPlan, Checkpointing, Offload
from peer.training.ranks.rank_group import RankGroup


def agreed_plan(plan: CardPlan, group: RankGroup) -> CardPlan:
    """The first rank's plan where this rank's card can do the same, and less where another one cannot: nothing compiled, moments as
    they are, float32 where precisions differ, and the strictest sparing of memory.
    """
    if group.size == 1:
        return plan
    first = CardPlan.model_validate_json(group.share(plan.model_dump_json().encode()))
    kept: tuple[Checkpointing, ...] = ("none", "selective", "full")
    away: tuple[Offload, ...] = get_args(Offload)
    return CardPlan(
        precision=first.precision if group.all(plan.precision == first.precision) else "fp32",
        is_compiled=group.all(plan.is_compiled),
        checkpointing=kept[int(group.largest(float(kept.index(plan.checkpointing))))],
        moments="int8" if group.all(plan.moments == "int8") else "exact",
        offload=away[int(group.largest(float(away.index(plan.offload))))],
    )
