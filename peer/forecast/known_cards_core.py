"""Cards that a plan knows by name: memory and board power. Pure. Peaks of the same cards are in peer/training/plan/speed_core.py.

Power is that which the board may take (TDP, TGP or TBP), by the makers' data sheets and product pages (nvidia.com, amd.com) as of
July 2025. So is the memory, in GiB of the usual model. Makers count the memory of newer data centre cards in 10^9 bytes, or torch sees
less of it. Theirs is the capacity that torch names in its errors: 139.80 GiB of an H200, 79.21 of an H100, 178.35 of a B200 and 191.98
of an MI300X. An MI325X has as many stacks of four thirds of that capacity. An MI300A shares 128 GiB with its processor and gives a
program 96 of them by default (ROCm's guide to its system settings). Of an MI250 torch sees two devices, so its numbers are half of the
card's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from peer.training.plan.cards_core import Card, CardKind
from protocol.errors import ConfigError

_GIB: Final = 1 << 30
_NEAREST: Final = 3
"""Names of an error."""

_PASCAL, _VOLTA, _TURING, _AMPERE, _AMPERE_86, _ADA, _HOPPER, _BLACKWELL, _BLACKWELL_120 = (
    *((6, 0), (7, 0), (7, 5), (8, 0), (8, 6)),
    *((8, 9), (9, 0), (10, 0), (12, 0)),
)

_NVIDIA: Final[dict[tuple[int, int], str]] = {
    _PASCAL: "P100=16/300, P100 PCIE=16/250",
    _VOLTA: "V100 16GB=16/300, V100 32GB=32/300, V100 PCIE=16/250",
    _TURING: "T4=16/70, TITAN RTX=24/280, QUADRO RTX 8000=48/260, QUADRO RTX 6000=24/260, QUADRO RTX 5000=16/230, "
    "RTX 2080 TI=11/250, RTX 2080 SUPER=8/250, RTX 2080=8/215, RTX 2070 SUPER=8/215, RTX 2070=8/175, RTX 2060=6/160",
    _AMPERE: "A100 40GB=40/400, A100 80GB=80/400, A30=24/165",
    _AMPERE_86: "A40=48/300, A10=24/150, RTX A6000=48/300, RTX A5000=24/230, RTX A4000=16/140, RTX 3090 TI=24/450, "
    "RTX 3090=24/350, RTX 3080 TI=12/350, RTX 3080=10/320, RTX 3070 TI=8/290, RTX 3070=8/220, RTX 3060 TI=8/200, "
    "RTX 3060=12/170",
    _ADA: "L40S=48/350, L40=48/300, L4=24/72, RTX 6000 ADA=48/300, RTX 5000 ADA=32/250, RTX 4000 ADA=20/130, "
    "RTX 4090=24/450, RTX 4080 SUPER=16/320, RTX 4080=16/320, RTX 4070 TI SUPER=16/285, RTX 4070 TI=12/285, "
    "RTX 4070 SUPER=12/220, RTX 4070=12/200, RTX 4060 TI=8/160, RTX 4060=8/115",
    _HOPPER: "H200=139/700, H200 NVL=139/600, H100=79/700, H100 PCIE=79/350, H100 NVL=93/400",
    _BLACKWELL: "B200=178/1000",
    _BLACKWELL_120: "RTX 5090=32/575, RTX 5080=16/360, RTX 5070 TI=16/300, RTX 5070=12/250",
}
"""By compute capability: name, GiB of memory, watts."""

_AMD: Final[dict[str, str]] = {
    "gfx942": "MI325X=255/1000, MI300X=191/750, MI300A=96/550",
    "gfx90a": "MI250X=64/280, MI250=64/280, MI210=64/300",
    "gfx908": "MI100=32/300",
    "gfx1201": "RX 9070 XT=16/304, RX 9070=16/220",
    "gfx1100": "RX 7900 XTX=24/355, RX 7900 XT=20/315, RX 7900 GRE=16/260",
    "gfx1101": "RX 7800 XT=16/263, RX 7700 XT=12/245",
    "gfx1102": "RX 7600=8/165",
    "gfx1030": "RX 6900 XT=16/300, RX 6800 XT=16/300, RX 6800=16/250",
    "gfx1031": "RX 6700 XT=12/230",
}


@dataclass(frozen=True, slots=True)
class KnownCard:
    """A card of the table.

    Attributes:
        name: as a user writes it, such as "rtx3090".
        watts: that its board may take.
    """

    name: str
    card: Card
    watts: float


def short_name(name: str) -> str:
    """The name in small letters and digits alone: "RTX 3090 Ti" and "rtx-3090-ti" are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def known_card(name: str) -> KnownCard:
    """The card of this name.

    Raises:
        ConfigError: the table has no such card; names the nearest ones.
    """
    wanted = short_name(name)
    if wanted in CARDS:
        return CARDS[wanted]
    longer = [known for known in CARDS if wanted and wanted in known]
    close = [*longer, *get_close_matches(wanted, CARDS, n=_NEAREST, cutoff=0.5)]
    found = f"the nearest are {', '.join(dict.fromkeys(close[:_NEAREST]))}; " if close else ""
    raise ConfigError(
        f"no card {name!r} is known",
        "a card of the table",
        f"{found}or measure it with `potluck doctor --speed run.toml` and give its speed, as 1x5.5tflops",
    )


def _rows(kind: CardKind, text: str, capability: tuple[int, int] = (0, 0), architecture: str = "") -> list[KnownCard]:
    found = []
    for row in text.split(", "):
        name, _, numbers = row.partition("=")
        memory, _, watts = numbers.partition("/")
        card = Card(kind, name, int(memory) * _GIB, capability, architecture)
        found.append(KnownCard(short_name(name), card, float(watts)))
    return found


def _table() -> dict[str, KnownCard]:
    nvidia = [row for capability, text in _NVIDIA.items() for row in _rows("cuda", text, capability)]
    amd = [row for architecture, text in _AMD.items() for row in _rows("rocm", text, architecture=architecture)]
    return {row.name: row for row in (*nvidia, *amd)}


CARDS: Final = _table()
"""All cards, by their short names."""
