"""Whether and how fast a group of peers trains a model, from the table of cards or from a measured speed. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from peer.forecast.crew_core import Group
from peer.training.plan.card_memory_core import CardLoad, flops_per_token, run_load
from peer.training.plan.card_plan import CardPlan, Offload, Wishes
from peer.training.plan.cards_core import Card, native_precision
from peer.training.plan.layout_core import SHARDED_FROM, LayoutChoice, SplitRules, Task, choose_layout
from peer.training.plan.owned_cards_core import OwnedCard
from peer.training.plan.plan_core import Limits, allows_int8
from peer.training.plan.speed_core import peak_flops
from peer.training.plan.split_core import why_no_context, why_no_tensor

if TYPE_CHECKING:
    from protocol.run.manifest import RunConfig

_KEPT_SPEED: Final = {"none": 1.0, "selective": 0.95, "full": 0.75}
"""Speed that is left where activations are computed again. A whole forward pass more is a third of the work of a step; without its
matrix products it is a few hundredths (Korthikanti et al. 2022, arXiv 2205.05198, section 6).
"""

_AWAY_SPEED: Final[dict[Offload, float]] = {"none": 1.0, "moments": 0.97, "all": 0.8}
"""The same where values lie in the machine's memory: 16 bytes a value pass PCIe for each step, or 2 for each micro-batch as gradients,
beside 6 floating-point operations a value and token. Computed for 12 GB/s, 18 TFLOP/s and micro-batches of 2,048 tokens.
"""


USUAL_MFU: Final = 0.3
"""Share of its peak that a card reaches with a model that fits with ease, where nothing was measured."""

MACHINE_MEMORY: Final = 2
"""Memory of a peer's machine, in memories of its cards: a usual one of a volunteer (3090 with 48 GB, 3060 with 24)."""


@dataclass(frozen=True, slots=True)
class GroupSpeed:
    """How each peer of a group trains.

    Attributes:
        how: the plan of its cards and their memory, in one line; why it does not fit if it does not.
        tokens_per_s: of each peer while it trains; 0 where it cannot.
        card_bytes, usable_bytes: of the fullest card; 0 where a speed was measured.
    """

    group: Group
    how: str
    tokens_per_s: float
    card_bytes: int = 0
    usable_bytes: int = 0

    @property
    def fits(self) -> bool:
        """Whether these peers can train the model."""
        return self.tokens_per_s > 0


def group_speed(run: RunConfig, group: Group, mfu: float) -> GroupSpeed:
    """How the peers of this group train the run's model.

    Args:
        mfu: share of the peak that cards of the table reach with a model that fits with ease, above 0.
    """
    flops = flops_per_token(run_load(run))
    if group.card is not None:
        return _of_cards(run, group, group.card.card, mfu / flops)
    if group.tokens_per_s:
        return GroupSpeed(group, "as measured with this model", group.tokens_per_s)
    return GroupSpeed(group, f"as measured, {group.flops_per_s / 1e12:.3g} TFLOP/s", group.flops_per_s / flops)


def _of_cards(run: RunConfig, group: Group, card: Card, tokens_per_flop: float) -> GroupSpeed:
    choice = _layout(run, card, group.cards)
    fullest = max(choice.plans, key=lambda plan: plan.expected_bytes)
    how = choice.layout.reason or fullest.reason
    if choice.left_out:
        how = f"{how}; {len(choice.left_out)} of {group.cards} cards are left out"
    if any(plan.missing_bytes for plan in choice.plans):
        return GroupSpeed(group, fullest.reason, 0.0, fullest.expected_bytes, fullest.usable_bytes)
    return GroupSpeed(group, how, _peaks(choice) * tokens_per_flop, fullest.expected_bytes, fullest.usable_bytes)


def _layout(run: RunConfig, card: Card, num_cards: int) -> LayoutChoice:
    """The layout of one peer's cards. They are taken to have a compiler, and to reach each other over PCIe, in a machine with
    `MACHINE_MEMORY` times their memory.
    """
    cards = [OwnedCard(number, card) for number in range(num_cards)]
    rules = SplitRules(partial(why_no_context, isolates=run.data.isolate), partial(why_no_tensor, mixture=run.mixture))
    machine_bytes = MACHINE_MEMORY * num_cards * card.memory_bytes
    limits = Limits(has_compiler=True, may_be_int8=allows_int8(run.inner), machine_bytes=machine_bytes)
    return choose_layout(cards, Task(run_load(run), run.inner, Wishes(), limits, rules), "auto")


def _peaks(choice: LayoutChoice) -> float:
    """FLOP/s of all cards that train, without what their plans cost."""
    total = 0.0
    for world, plan in zip(choice.cards, choice.plans, strict=True):
        shared = SHARDED_FROM if len(world) > 1 else 1.0
        for owned in world:
            peak = peak_flops(owned.card, native_precision(owned.card)) or 0.0
            total += peak * _kept(plan.plan) * shared
    return total


def planned_speed(card: Card, plan: CardPlan, load: CardLoad, mfu: float) -> tuple[float, float] | None:
    """The tokens/s and the share of its peak to expect of a card by its plan; None where no peak is known.

    Args:
        mfu: as of `group_speed`.
    """
    peak = peak_flops(card, plan.precision)
    reached = mfu * _kept(plan)
    return None if peak is None else (peak * reached / flops_per_token(load), reached)


def _kept(plan: CardPlan) -> float:
    return _KEPT_SPEED[plan.checkpointing] * _AWAY_SPEED[plan.offload]
