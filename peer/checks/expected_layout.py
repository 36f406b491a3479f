"""How several cards of this machine would train a run, before anything is started: for `potluck doctor` and `join --dry-run`."""

from __future__ import annotations

import os
from collections.abc import Callable

from averaging.system.machine_limits import read_memory
from peer.cards.all_cards import MachineCards, cpu_cards, read_all_cards
from peer.cards.layout_of import layout_of
from peer.cards.own_cards import OwnCards
from peer.settings.config import PeerConfig
from peer.training.plan.gpus_core import ALL, AUTO, check_device, parse_gpus
from peer.training.plan.layout_core import LayoutChoice
from peer.training.plan.owned_cards_core import take
from protocol.run.manifest import RunConfig


def has_several_cards(config: PeerConfig) -> bool:
    """Whether the owner names cards, or NVIDIA's driver knows several that this process may use. Quick; torch is not asked."""
    if parse_gpus(config.gpus) != (AUTO,):
        return True
    return config.device in ("auto", "cuda") and _num_nvidia() > 1


def _num_nvidia() -> int:
    import pynvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        pynvml.nvmlInit()
        there = int(pynvml.nvmlDeviceGetCount())
    except (pynvml.NVMLError, OSError):
        return 0
    return there if visible is None else min(there, len([name for name in visible.split(",") if name.strip()]))


def named_cards(config: PeerConfig) -> tuple[str, ...]:
    """The cards that the owner names, or processes on the CPU; none for "auto" and "all".

    Raises:
        ConfigError: the setting cannot be understood.
    """
    names = parse_gpus(config.gpus)
    return () if names in ((AUTO,), (ALL,)) else names


def expected_layout(config: PeerConfig, run: RunConfig) -> LayoutChoice | None:
    """The layout that training would begin with; None for one device that needs no choice. Asks torch in another process: seconds.
    Cards that a running peer holds count as free.

    Raises:
        ConfigError, MachineError: the named cards cannot be meant, or torch does not tell.
    """
    choice = layout_on(config, run, read_all_cards)
    return choice if sum(len(world) for world in choice.cards) + len(choice.left_out) > 1 else None


def layout_on(config: PeerConfig, run: RunConfig, read: Callable[[], MachineCards]) -> LayoutChoice:
    """The layout for the cards of this machine, or for the named processes on the CPU.

    Args:
        read: tells the cards. It is not called for `--device cpu`.

    Raises:
        ConfigError, MachineError: the named cards cannot be meant.
    """
    check_device(parse_gpus(config.gpus), config.device)
    if config.device == "cpu":
        numbers = [int(name) for name in named_cards(config)]
        return layout_of(OwnCards(cpu_cards(numbers, read_memory().total_bytes)), config, run)
    found = read()
    taken = take(found.cards, parse_gpus(config.gpus))
    return layout_of(OwnCards(taken.cards, taken.left_out, found.links), config, run)
