"""`python -m tests.benchmarks.cards_peer join ...`: a peer with as many islands on the CPU as its environment says."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import peer.session.run_layout
import potluck
from peer.cards.own_cards import OwnCards
from peer.settings.config import PeerConfig
from peer.training.plan.layout import Layout, World
from peer.training.plan.layout_core import LayoutChoice
from protocol.run.manifest import RunConfig

CARDS_PEER: Final = "tests.benchmarks.cards_peer"
"""The module to run in the place of potluck."""

ISLANDS_VARIABLE: Final = "CARDS_ISLANDS"


def layout_of(own: OwnCards, config: PeerConfig, run: RunConfig, experts: Sequence[int]) -> LayoutChoice:
    """So many islands on this peer's device."""
    num_islands = int(os.environ.get(ISLANDS_VARIABLE, "1"))
    return LayoutChoice(Layout(worlds=(World(devices=(config.device,)),) * num_islands), ())


if __name__ == "__main__":
    setattr(peer.session.run_layout, "layout_of", layout_of)  # noqa: B010 - mypy takes no plain assignment
    sys.argv[0] = "potluck"
    potluck.main()
