"""The plan of the card that a training process has, chosen at its start, and what is told of it."""

from __future__ import annotations

import torch

from averaging.system.machine_limits import read_memory
from peer.machine.device import forget_most_used, most_used_bytes
from peer.machine.torch_extras import has_torchao, why_no_compiler
from peer.training.cards import read_card
from peer.training.plan.card_memory_core import CardLoad, flops_per_token
from peer.training.plan.card_plan import CardPlan, Wishes
from peer.training.plan.card_report import CardReport
from peer.training.plan.cards_core import Card
from peer.training.plan.layout import Mesh
from peer.training.plan.plan_core import (
    Limits,
    allows_int8,
    card_words,
    choose,
    expected_bytes,
    explained,
    is_worth_compiling,
    may_lie_away,
    usable,
)
from peer.training.plan.rank_memory_core import ALONE
from peer.training.plan.speed_core import peak_flops
from peer.training.replica.compiler import not_compiled
from protocol.run.training_sections import InnerSection


class CardAtWork:
    """Chooses the plan, unless one is given. `why_eager` is the line for people if layers could be compiled and are not.

    Args:
        most_bytes: of the card's own memory, 0 for all of it.
        given: the plan to use instead, as after running out of memory.
        micro_batch: where the run fixes it, 0 where it is to be found.
        mesh: of the ranks that share the model; this card is one of them.
        num_replicas: of the peer, beside each other.
    """

    def __init__(
        self,
        device: torch.device,
        load: CardLoad,
        inner: InnerSection,
        wishes: Wishes,
        *,
        most_bytes: int = 0,
        given: CardPlan | None = None,
        micro_batch: int = 0,
        mesh: Mesh = ALONE,
        num_replicas: int = 1,
    ) -> None:
        self._device, self._load, self._inner, self._mesh = device, load, inner, mesh
        self._card = read_card(device)
        self.why_eager = _why_eager(self._card, wishes, device)
        compiles = not why_no_compiler(device.type)
        may_be_int8 = allows_int8(inner) and compiles and has_torchao()
        machine_bytes = read_memory().total_bytes // (num_replicas * mesh.num_ranks)
        self._limits = Limits(most_bytes, compiles, may_be_int8, machine_bytes)
        choice = choose(self._card, load, inner, wishes, self._limits, micro_batch, mesh)
        self.plan = given or choice.plan
        self._micro_batch = choice.micro_batch
        self._usable_bytes = usable(self._card, wishes.fit, self._limits)

    def begin(self) -> None:
        """Training begins: memory that was taken before does not count as used."""
        forget_most_used(self._device)

    def report(self, micro_batch: int) -> CardReport:
        """The plan at so many sequences at a time; 0 if that is not known yet."""
        size = micro_batch or self._micro_batch
        expected = expected_bytes(self._card, self._load, self._inner, size, self.plan, self._mesh)
        return CardReport(
            plan=self.plan,
            kind=self._card.kind,
            may_be_int8=self._limits.may_be_int8,
            most_away=may_lie_away(self._load, self._inner, self._mesh, self._limits.machine_bytes),
            reason=explained(self._card, self.plan, expected, self._usable_bytes),
            expected_bytes=expected,
            usable_bytes=self._usable_bytes,
            used_bytes=most_used_bytes(self._device),
            flops_per_token=flops_per_token(self._load),
            peak_flops=peak_flops(self._card, self.plan.precision),
        )


def _why_eager(card: Card, wishes: Wishes, device: torch.device) -> str:
    """Why layers run eagerly although the card or its owner would have them compiled, in one line; empty if there is no reason."""
    if is_worth_compiling(card, wishes):
        reason = why_no_compiler(device.type)
    else:
        reason = f"torch compiles nothing for {card_words(card)}" if wishes.compiles == "on" else ""
    return not_compiled(reason) if reason else ""
