"""Errors of the training process, as raised in the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from peer.training.plan.card_plan import CardPlan
from peer.training.plan.plan_core import plan_words
from peer.training.worker_channel import OutOfMemory
from protocol.errors import TemporaryError


class WorkerDied(TemporaryError):
    """The worker ended while a command was running. It is being restarted."""


class LossNotFinite(TemporaryError):
    """The held-out loss of these parameters is not a number. Those of a later commit may have one."""


class DoesNotFit(TemporaryError):
    """Nothing is measured: the model, or an evaluation of it, does not fit into the allowed memory of the card."""


NO_EVALUATION_S: Final = 3600.0
"""No evaluation is tried for so long after one that ended the processes of several cards."""

NO_ROOM_TO_EVALUATE: Final = "the card has no memory left for an evaluation; other peers evaluate, and training goes on"


def all_finite(losses: Sequence[float | None]) -> tuple[float, ...]:
    """Losses received from the worker, where a non-finite one is None.

    Raises:
        LossNotFinite: there is one.
    """
    found = tuple(nats for nats in losses if nats is not None)
    if len(found) < len(losses):
        raise LossNotFinite("a held-out loss that is not finite", "a number", "wait for the next commit")
    return found


def out_of_memory_reason(micro_batch: int, others_bytes: int, now_with: str = "") -> str:
    """The consequence of memory that ran out: the next micro-batch, 0 for one to be found. `others_bytes` of the card's memory are
    held by other programs. `now_with`: the next plan in words, empty if it stays.
    """
    with_plan = f"now with {now_with}; " if now_with else ""
    found = f"out of memory: {with_plan}the micro-batch is {f'now {micro_batch}' if micro_batch else 'to be found'}"
    return f"{found}{_held_words(others_bytes)}"


def _held_words(others_bytes: int) -> str:
    return f"; other programs hold {others_bytes / 1e9:.3g} GB of the card" if others_bytes else ""


def misfit_reason(most_bytes: int, needed_bytes: int = 0) -> str:
    """Why nothing is trained on a card with this memory limit. `needed_bytes`: expected with the smallest plan, 0 if unknown."""
    missing_bytes = needed_bytes - most_bytes
    missing = f": about {missing_bytes / 1e9:.1f} GB are missing" if missing_bytes > 0 else ""
    return (
        f"the model does not fit into {most_bytes / 1e9:.3g} GB of the card, not even with one sequence at a time{missing}; "
        "allow more with --max-gpu-memory-gb, or train with --device cpu"
    )


def smaller_plan(cause: OutOfMemory) -> tuple[CardPlan | None, int]:
    """The next plan after running out of memory, and its micro-batch, 0 if it is to be found. The same one again after the last."""
    report, micro_batch = cause.card_report, cause.micro_batch
    if report is None:  # it ended before it had chosen
        return None, min(micro_batch, max(1, micro_batch // 2))
    then = report.next_rung(micro_batch)
    return then if then is not None else (report.plan, micro_batch)


def ran_out_words(cause: OutOfMemory, plan: CardPlan | None, micro_batch: int) -> str:
    """Why the training process starts anew after running out of memory, now with this plan and micro-batch."""
    if cause.in_evaluation:
        return (
            f"out of memory in an evaluation; other peers evaluate for the next hour{_held_words(cause.others_bytes)}"
        )
    is_new = cause.card_report is not None and cause.card_report.plan != plan
    return out_of_memory_reason(micro_batch, cause.others_bytes, plan_words(plan) if is_new and plan else "")
