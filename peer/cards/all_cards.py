"""Reads all cards of this machine, without torch in this process: torch is asked in another one, the driver through NVML."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Final

import structlog

from peer.machine.card import find_card, text_of
from peer.machine.card_faults import card_fault
from peer.machine.torch_child import ask_torch
from peer.training.plan.cards_core import Card
from peer.training.plan.layout_core import Links
from peer.training.plan.owned_cards_core import OwnedCard
from protocol.errors import MachineError

log = structlog.get_logger()

ASK_WITHIN_S: Final = 60.0
"""Importing torch may take very long from a cold or distant disk, and each card takes a second to wake."""

ASK_TORCH: Final = "from peer.cards.torch_cards import print_cards; print_cards()"


@dataclass(frozen=True, slots=True)
class MachineCards:
    """The cards by their numbers, and what joins them."""

    cards: tuple[OwnedCard, ...] = ()
    links: Links = field(default_factory=Links)


def read_all_cards(limit_s: float = ASK_WITHIN_S, program: str = ASK_TORCH) -> MachineCards:
    """All cards that torch sees here. Blocks.

    Raises:
        MachineError: torch does not tell.
    """
    try:
        done = ask_torch(program, limit_s)
    except subprocess.TimeoutExpired as error:
        raise _untold(f"no answer within {limit_s:g} s") from error
    except OSError as error:
        raise _untold(str(error.strerror)) from error
    said = done.stdout.splitlines()
    if done.returncode or not said:
        raise _untold((done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
    try:
        found = cards_of(json.loads(said[-1]))
    except (ValueError, KeyError, TypeError) as error:
        raise _untold("its answer cannot be understood") from error
    return with_driver(found)


def cards_of(answer: Mapping[str, Any]) -> MachineCards:
    """The cards in an answer of `torch_cards`.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    cards = tuple(_card(number, str(answer["kind"]), row) for number, row in enumerate(answer["cards"]))
    return MachineCards(cards, Links(apart=frozenset((int(low), int(high)) for low, high in answer["apart"])))


def _card(number: int, kind: str, row: Mapping[str, Any]) -> OwnedCard:
    if kind not in ("cuda", "rocm"):
        raise ValueError(f"cards of kind {kind!r}")
    major, minor = row["capability"]
    is_cuda, uuid, problem = kind == "cuda", str(row["uuid"]), str(row["problem"])
    card = Card(
        "cuda" if is_cuda else "rocm",
        str(row["name"]),
        int(row["memory_bytes"]),
        (int(major), int(minor)) if is_cuda else (0, 0),
        str(row["architecture"]),
    )
    return OwnedCard(
        number,
        card,
        uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",
        None if row["free_bytes"] is None else int(row["free_bytes"]),
        problem=_in_words(problem),
    )


def _in_words(problem: str) -> str:
    fault = card_fault(RuntimeError(problem)) if problem else None
    return fault.reason if fault is not None else problem


def with_driver(found: MachineCards) -> MachineCards:
    """The same cards with their temperatures, reservations and fast links, as far as NVIDIA's driver tells them."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as error:
        log.debug("no_nvidia_driver", reason=str(error))
        return found
    handles = {card.number: _handle(pynvml, card) for card in found.cards}
    cards = tuple(_with_facts(pynvml, card, handles[card.number]) for card in found.cards)
    return replace(found, cards=cards, links=replace(found.links, fast=_fast_pairs(pynvml, handles)))


def only_card_uuid() -> str:
    """The UUID of the one NVIDIA card that this process may use; empty if the driver does not tell."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return text_of(pynvml.nvmlDeviceGetUUID(find_card(pynvml, None).handle))
    except (pynvml.NVMLError, OSError) as error:
        log.debug("only_card_unknown", reason=str(error))
        return ""


def _handle(pynvml: Any, card: OwnedCard) -> Any:
    """The driver's handle of a card; None if it knows none."""
    if not card.uuid:
        return None
    try:
        return find_card(pynvml, card.uuid).whole
    except (pynvml.NVMLError, OSError):
        return None


def _with_facts(pynvml: Any, card: OwnedCard, handle: Any) -> OwnedCard:
    if handle is None:
        return card
    try:
        celsius = float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    except pynvml.NVMLError:
        celsius = None
    return replace(card, celsius=celsius, problem=card.problem or _reservation(pynvml, handle))


def _reservation(pynvml: Any, handle: Any) -> str:
    """Why the machine's administrator keeps this card from us; empty if it is free."""
    try:
        mode = pynvml.nvmlDeviceGetComputeMode(handle)
    except pynvml.NVMLError:
        return ""
    return "it is reserved (compute mode prohibited)" if mode == pynvml.NVML_COMPUTEMODE_PROHIBITED else ""


def _fast_pairs(pynvml: Any, handles: Mapping[int, Any]) -> frozenset[tuple[int, int]]:
    """The pairs of cards with NVLink between them."""
    found = []
    for low, high in combinations(sorted(handles), 2):
        if handles[low] is None or handles[high] is None:
            continue
        try:
            kind = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
            status = pynvml.nvmlDeviceGetP2PStatus(handles[low], handles[high], kind)
        except pynvml.NVMLError:
            continue
        if status == pynvml.NVML_P2P_STATUS_OK:
            found.append((low, high))
    return frozenset(found)


def cpu_cards(numbers: Sequence[int], memory_bytes: int) -> tuple[OwnedCard, ...]:
    """Processes on the CPU as cards, which share the machine's memory."""
    return tuple(OwnedCard(number, Card("cpu", "", memory_bytes // max(1, len(numbers)))) for number in numbers)


def _untold(reason: str) -> MachineError:
    return MachineError(
        f"torch does not tell the cards of this machine: {reason}",
        "an answer",
        "see potluck doctor, or train with --device cpu",
    )
