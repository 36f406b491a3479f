"""The peak of a card, and the share of it that training uses (model FLOPs utilisation). Pure.

Peaks are dense, of one torch device, with sums in float32, at the boost clock of the makers' specifications. H100, A100, A10, V100,
T4 and Quadro RTX 5000 are as in Lightning's table of NVIDIA's data sheets (lightning/fabric/utilities/throughput.py). In float32 a
card does two operations for each core and cycle. Its tensor cores do a fixed multiple of that: for GeForce cards, which sum in
float32 at half speed, 4 on Turing and 2 from Ampere on; for RTX professional cards 8 on Turing and 4 from Ampere on. Of an MI250
torch sees two devices, so its peak is half of the card's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from peer.training.plan.card_plan import Precision
from peer.training.plan.cards_core import Card


@dataclass(frozen=True, slots=True)
class Peak:
    """TFLOP/s in each type; None where the card does not multiply in it by its own hardware."""

    fp32: float
    fp16: float | None
    bf16: float | None


def _both(fp32: float, half: float) -> Peak:
    return Peak(fp32, half, half)


def _fp16(fp32: float, half: float) -> Peak:
    return Peak(fp32, half, None)


_PEAKS: Final[dict[str, Peak]] = {
    # NVIDIA, data centre
    "B200": _both(75.0, 2250.0),
    "GH200": _both(67.0, 989.0),
    "H200 NVL": _both(60.0, 835.0),
    "H200": _both(67.0, 989.0),
    "H100 PCIE": _both(51.0, 756.0),
    "H100 NVL": _both(60.0, 835.0),
    "H100": _both(67.0, 989.0),
    "A100": _both(19.5, 312.0),
    "A40": _both(37.4, 149.7),
    "A30": _both(10.3, 165.0),
    "A10": _both(31.2, 125.0),
    "L40S": _both(91.6, 362.0),
    "L40": _both(90.5, 181.0),
    "L4": _both(30.3, 121.0),
    "V100 PCIE": _fp16(14.0, 112.0),
    "V100": _fp16(15.7, 125.0),
    "T4": _fp16(8.1, 65.0),
    "P100 PCIE": _fp16(9.3, 18.7),
    "P100": _fp16(10.6, 21.2),
    # NVIDIA, RTX professional
    "RTX A6000": _both(38.7, 154.8),
    "RTX A5000": _both(27.8, 111.1),
    "RTX A4000": _both(19.2, 76.7),
    "RTX 6000 ADA": _both(91.1, 364.2),
    "RTX 5000 ADA": _both(65.3, 261.1),
    "RTX 4000 ADA": _both(26.7, 106.9),
    "QUADRO RTX 8000": _fp16(16.3, 130.5),
    "QUADRO RTX 6000": _fp16(16.3, 130.5),
    "QUADRO RTX 5000": _fp16(11.2, 89.2),
    "TITAN RTX": _fp16(16.3, 130.5),
    # NVIDIA, GeForce
    "RTX 5090": _both(104.8, 209.5),
    "RTX 5080": _both(56.3, 112.6),
    "RTX 5070 TI": _both(43.9, 87.9),
    "RTX 5070": _both(30.9, 61.7),
    "RTX 4090": _both(82.6, 165.2),
    "RTX 4080 SUPER": _both(52.2, 104.4),
    "RTX 4080": _both(48.7, 97.5),
    "RTX 4070 TI SUPER": _both(44.1, 88.2),
    "RTX 4070 TI": _both(40.1, 80.2),
    "RTX 4070 SUPER": _both(35.5, 71.0),
    "RTX 4070": _both(29.1, 58.3),
    "RTX 4060 TI": _both(22.1, 44.1),
    "RTX 4060": _both(15.1, 30.2),
    "RTX 3090 TI": _both(40.0, 80.0),
    "RTX 3090": _both(35.6, 71.0),
    "RTX 3080 TI": _both(34.1, 68.2),
    "RTX 3080": _both(29.8, 59.5),
    "RTX 3070 TI": _both(21.7, 43.5),
    "RTX 3070": _both(20.3, 40.6),
    "RTX 3060 TI": _both(16.2, 32.4),
    "RTX 3060": _both(12.7, 25.5),
    "RTX 2080 TI": _fp16(13.4, 53.8),
    "RTX 2080 SUPER": _fp16(11.2, 44.6),
    "RTX 2080": _fp16(10.1, 40.3),
    "RTX 2070 SUPER": _fp16(9.1, 36.3),
    "RTX 2070": _fp16(7.5, 29.9),
    "RTX 2060": _fp16(6.5, 25.8),
    # AMD
    "MI325X": _both(163.4, 1307.4),
    "MI300X": _both(163.4, 1307.4),
    "MI300A": _both(122.6, 980.6),
    "MI250X": _both(23.9, 191.5),
    "MI250": _both(22.6, 181.0),
    "MI210": _both(22.6, 181.0),
    "MI100": Peak(23.1, 184.6, 92.3),
    "RX 9070 XT": _both(48.7, 195.0),
    "RX 9070": _both(36.1, 145.0),
    "RX 7900 XTX": _both(61.4, 122.8),
    "RX 7900 XT": _both(51.5, 103.0),
    "RX 7900 GRE": _both(46.0, 92.0),
    "RX 7800 XT": _both(37.3, 74.6),
    "RX 7700 XT": _both(35.2, 70.3),
    "RX 7600": _both(21.8, 43.5),
    "RX 6900 XT": _fp16(23.0, 46.1),
    "RX 6800 XT": _fp16(20.7, 41.5),
    "RX 6800": _fp16(16.2, 32.3),
    "RX 6700 XT": _fp16(13.2, 26.4),
}

_OTHER_CARD: Final = frozenset({"LAPTOP", "MAX", "MOBILE", "TI", "SUPER", "XT", "XTX", "GRE", "D", "S", "M"})
"""Words after a known name that make it another card, with another peak."""

_WORD: Final = re.compile(r"[A-Z0-9]+")


def peak_flops(card: Card, precision: Precision) -> float | None:
    """Dense peak of the card in FLOP/s; None if this is not known. No peak is guessed."""
    words = _WORD.findall(card.name.upper())
    for name in sorted(_PEAKS, key=lambda name: -len(name.split())):
        known = name.split()
        if not _follows(words, known):
            continue
        tera: float | None = getattr(_PEAKS[name], precision)
        return None if tera is None else tera * 1e12
    return None


def _follows(words: list[str], known: list[str]) -> bool:
    """Whether these words are the name of exactly this card. A form factor may follow anywhere, as in "V100 SXM2" or "V100-PCIE"."""
    for begin in range(len(words) - len(known) + 1):
        if words[begin : begin + len(known)] == known:
            return not _OTHER_CARD.intersection(words[begin + len(known) :])
    return False


def utilisation(tokens_per_s: float, flops_per_token: int, peak: float | None) -> float | None:
    """Model FLOPs utilisation, 0 to 1; None without a peak or before there is a speed."""
    return tokens_per_s * flops_per_token / peak if peak and tokens_per_s > 0 else None
