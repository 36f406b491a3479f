"""The law that `potluck plan` takes for the cost of several members, beside the losses of the table.

The table's losses are in nats a byte and the law's in nats a token of a vocabulary of about 32,000, so only ratios of losses are
compared: of so many members over data-parallel training. The law is for rounds of 30 steps with tuned outer rates, the table's
shortest rounds are of 20 steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from peer.forecast.loss_law_core import members_factor
from protocol.tensors.model_config import model_schema
from tests.benchmarks.learning.loss_rows import BENCH, Standing
from tests.benchmarks.learning.sizes import Size
from tests.benchmarks.learning.table_plan import MEMBERS, SWEPT_STEPS, name_of
from tests.benchmarks.results import Row, machine

LAW: Final = "Charles et al. 2025, arXiv 2503.09799"


def law_rows(size: Size, found: Sequence[Standing]) -> list[Row]:
    """For each number of members that was trained: its gap and the law's, in percent, and the error of the law's loss.

    Args:
        found: standings over synchronous AdamW.
    """
    num_values, rows = model_schema(size.model).num_elements, list[Row]()
    for members in MEMBERS:
        alike = [each for each in found if each.members == members and _is_of_the_law(each)]
        if alike:
            rows += _of_members(
                f"{size.name}, {members} member{'s' * (members != 1)}", num_values, min(alike, key=_gap)
            )
    return rows


def _is_of_the_law(each: Standing) -> bool:
    """AdamW inside, even rounds, exact values: as in the paper. The outer step is the best that was swept."""
    way = each.way
    return (way.kind, way.optimizer, way.codec, way.ramp.last) == ("rounds", "adamw", "fp32", SWEPT_STEPS)


def _gap(each: Standing) -> float:
    return each.gap


def _of_members(what: str, num_values: int, each: Standing) -> list[Row]:
    law = 100.0 * (members_factor(num_values, each.members) - 1.0)
    errors = [100.0 * ((1.0 + gap / 100.0) / (1.0 + law / 100.0) - 1.0) for gap in each.gaps]
    settings = {"law": LAW, "values": num_values, "way": name_of(each.way), "machine": machine()}
    gap = _row(f"{what}: loss over data-parallel training, against the law of a plan", each.gaps, settings)
    gap = replace(gap, baseline=round(law, 2), ratio=round(each.gap / law, 2))
    return [gap, _row(f"{what}: measured loss over the law's", errors, settings)]


def _row(metric: str, percents: Sequence[float], settings: dict[str, object]) -> Row:
    spread = {"best": round(min(percents), 2), "worst": round(max(percents), 2)} if len(percents) > 1 else {}
    value = round(statistics.median(percents), 2)
    return Row(BENCH, metric, value, "%", trials=len(percents), spread=spread, settings=settings)
