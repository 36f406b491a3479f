"""The measurements of the all-reduce benchmark, in parts of half an hour, and how long each is expected to take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.benchmarks.allreduce_rows import Setting

M: Final = 1_000_000
IDLE_S: Final = 345.0
IDLE_OF_MANY_S: Final = 510.0
QUICK_IDLE_S: Final = 45.0
"""Longer than what lies between two looks at the directory of a settled swarm: 270 s with 16 members, 480 with 32. The quick run sees
what is said right after a commit.
"""
PART_S: Final = 1560.0
"""The most seconds that the settings of one part are expected to take; nothing more is begun after FULL_LIMIT_S."""

FULL_LIMIT_S: Final = 1770.0
QUICK_LIMIT_S: Final = 570.0
_ORDER_S: Final = 2.5
"""A trial is ordered two seconds before it begins, and told a moment after it ended."""

WARM_UPS: Final = 6
"""Until our peers take no memory any more that they did not have: they keep the contributions of four rounds and of the one before."""

FEW_WARM_UPS: Final = 3
"""For settings whose rounds are bound by the line, which is learned after two rounds."""

_LINK_SHARE: Final = 0.85
_RESTART_S: Final = 20.0
"""Of who was killed before. As many rounds of all as warm-ups follow, and the one in which the next one is killed."""

SMALL: Final = tuple(
    Setting(1 * M, peers, 0, ("int8",), has_baselines=False, idle_s=IDLE_OF_MANY_S if peers > 16 else IDLE_S)
    for peers in (2, 4, 8, 16, 32)
)
"""The setting in which messages weigh most beside the data."""

IDLE: Final = tuple(Setting(1 * M, peers, 1000, ("int8",), has_baselines=False, idle_s=IDLE_S) for peers in (2, 4))
"""In places of their own, so that all on their interfaces is seen, too."""

KILLED_AT: Final = (4, 100, "int8")
"""Members, Mbit/s and codec at which one is killed in the end."""

FULL_KILLS: Final = 3
QUICK_KILLS: Final = 1
"""Each with another victim."""

FULL: Final = (
    Setting(25 * M, 4, 0, ("int8", "fp32", "fp16", "int4"), num_warm_ups=WARM_UPS),
    Setting(25 * M, 2, 0, ("int8",), num_warm_ups=WARM_UPS),
    Setting(25 * M, 4, 1000, ("fp32", "int8"), num_warm_ups=WARM_UPS),
    Setting(25 * M, 2, 1000, ("fp32", "int8"), num_warm_ups=WARM_UPS),
    Setting(25 * M, 4, 100, ("int8", "int4"), num_warm_ups=FEW_WARM_UPS),
    Setting(25 * M, 2, 100, ("int8", "int4"), num_warm_ups=FEW_WARM_UPS),
    *SMALL,
    *IDLE,
    Setting(100 * M, 2, 0, ("int8",), num_warm_ups=WARM_UPS),
    Setting(100 * M, 4, 0, ("int8",), is_apart=True, num_warm_ups=WARM_UPS),
    Setting(100 * M, 2, 1000, ("int8",), num_warm_ups=WARM_UPS),
    Setting(100 * M, 4, 1000, ("int8",), is_apart=True, num_warm_ups=WARM_UPS),
    Setting(100 * M, 2, 100, ("int8",)),
    Setting(100 * M, 4, 100, ("int8",), is_apart=True),
)
"""With 100M values four members of ours take 15 GiB, and those of the others as much."""

QUICK: Final = (
    Setting(25 * M, 4, 0, ("int8",), num_warm_ups=FEW_WARM_UPS),
    Setting(25 * M, 4, 100, ("int8",)),
    Setting(25 * M, 4, 1000, ("fp32",)),
    *(replace(setting, idle_s=QUICK_IDLE_S) for setting in SMALL if setting.num_peers in (2, 8)),
)


def expected_s(setting: Setting, num_trials: int, num_kills: int) -> float:
    """How long a setting takes with so many trials, by the links' bounds, and on loopback by two cores: a rough number, to plan by."""
    start_s, num_orders = 20.0 + 4.0 * setting.num_peers, num_trials + setting.num_warm_ups
    total_s = setting.idle_s
    for number, codec in enumerate(setting.codecs):
        total_s += start_s + num_orders * (_ORDER_S + _trial_s(setting, codec))
        if setting.has_baselines and number == 0:
            others = ("fp32", *setting.compressions)  # gloo's is fp32
            total_s += start_s + num_orders * sum(_ORDER_S + _trial_s(setting, other) for other in others)
        elif setting.has_baselines:
            total_s += num_trials * (_ORDER_S + _trial_s(setting, "fp32"))
        if (setting.num_peers, setting.rate_mbit_s, codec) == KILLED_AT:
            total_s += num_kills * (_RESTART_S + (setting.num_warm_ups + 1) * (_ORDER_S + _trial_s(setting, codec)))
    return total_s


def _trial_s(setting: Setting, codec: str) -> float:
    busy_s = setting.num_peers * setting.num_elements / (50 * M)
    if not setting.rate_mbit_s:
        return busy_s
    return max(busy_s, setting.bound_bytes(codec) * 8 / (setting.rate_mbit_s * 1e6 * _LINK_SHARE))


def parts_of(settings: Sequence[Setting], num_trials: int, num_kills: int) -> list[list[Setting]]:
    """The settings in their order, as parts that each fit into half an hour."""
    parts: list[list[Setting]] = []
    left_s = 0.0
    for setting in settings:
        needed_s = expected_s(setting, num_trials, num_kills)
        if needed_s > left_s:
            parts.append([])
            left_s = PART_S
        parts[-1].append(setting)
        left_s -= needed_s
    return parts


@dataclass
class Plan:
    """The measurements, their number of repetitions, and the seconds after which nothing more is begun."""

    settings: Sequence[Setting]
    num_trials: int
    limit_s: float
    num_kills: int = 1
    began_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Until the limit."""
        return self.began_s + self.limit_s - time.monotonic()

    def fits(self, setting: Setting) -> bool:
        """Whether there is time left for its first codec, by a guess: starts, and what the links take."""
        started_s = 20.0 + 4.0 * setting.num_peers
        encoded = setting.bound_bytes("fp32" if setting.has_baselines else setting.codecs[0])
        link_s = 2.5 * encoded * 8 / (setting.rate_mbit_s * 1e6) if setting.rate_mbit_s else setting.num_elements / 25e6
        return self.left_s > started_s + 3 * link_s + setting.idle_s
