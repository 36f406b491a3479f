"""The cards of this machine as torch sees them. Runs in a process of its own, which a lost card may end or stop."""

from __future__ import annotations

import json
from itertools import combinations

import torch

_MOST_WORDS = 160


def torch_cards() -> dict[str, object]:
    """The cards with their numbers' order, the pairs that cannot read each other's memory, and each card's trouble, if any."""
    if not torch.cuda.is_available():
        return {"kind": "", "cards": [], "apart": []}
    cards = [_card(index) for index in range(torch.cuda.device_count())]
    good = [index for index, card in enumerate(cards) if not card["problem"]]
    apart = [pair for pair in combinations(good, 2) if not torch.cuda.can_device_access_peer(*pair)]
    return {"kind": "cuda" if torch.version.hip is None else "rocm", "cards": cards, "apart": apart}


def _card(index: int) -> dict[str, object]:
    found = torch.cuda.get_device_properties(index)
    uuid = str(getattr(found, "uuid", "") or "")
    free_bytes, problem = _tried(index)
    return {
        "name": found.name,
        "memory_bytes": found.total_memory,
        "free_bytes": free_bytes,
        "capability": torch.cuda.get_device_capability(index),
        "architecture": str(getattr(found, "gcnArchName", "")),
        "uuid": uuid,
        "problem": problem,
    }


def _tried(index: int) -> tuple[int | None, str]:
    """Free bytes of a card that computes one sum, or why it does not."""
    try:
        free_bytes, _ = torch.cuda.mem_get_info(index)
        torch.ones(1, device=f"cuda:{index}").add_(1).item()
    except RuntimeError as error:
        return None, (str(error).strip().splitlines() or [type(error).__name__])[0][:_MOST_WORDS]
    return free_bytes, ""


def print_cards() -> None:
    """Print them as one line of JSON."""
    print(json.dumps(torch_cards()))
