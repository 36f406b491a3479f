from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peer.training.plan.card_plan import CardPlan
from peer.training.plan.layout import Mesh
from peer.training.ranks.agreed_plan import agreed_plan
from peer.training.ranks.rank_group import alone, meet

RICH = CardPlan(precision="bf16", is_compiled=True, moments="int8")


def _agreed(folder: Path, plans: list[CardPlan]) -> list[CardPlan]:
    mesh = Mesh(shard=len(plans))

    def one(rank: int) -> CardPlan:
        group = meet(mesh, rank, folder)
        try:
            return agreed_plan(plans[rank], group)
        finally:
            group.close()

    with ThreadPoolExecutor(len(plans)) as threads:
        return list(threads.map(one, range(len(plans))))


@pytest.mark.parametrize(
    ("other", "agreed"),
    [
        (RICH, RICH),
        (CardPlan(precision="fp16", is_compiled=True, moments="int8"), RICH.model_copy(update={"precision": "fp32"})),
        (RICH.model_copy(update={"is_compiled": False}), RICH.model_copy(update={"is_compiled": False})),
        (RICH.model_copy(update={"checkpointing": "full"}), RICH.model_copy(update={"checkpointing": "full"})),
        (RICH.model_copy(update={"moments": "exact"}), RICH.model_copy(update={"moments": "exact"})),
        (RICH.model_copy(update={"offload": "moments"}), RICH.model_copy(update={"offload": "moments"})),
        (RICH.model_copy(update={"offload": "all"}), RICH.model_copy(update={"offload": "all"})),
    ],
)
def test_ranks_compute_as_the_card_that_can_do_least(short_path: Path, other: CardPlan, agreed: CardPlan) -> None:
    assert _agreed(short_path, [RICH, other, RICH]) == [agreed] * 3


def test_one_card_keeps_its_plan() -> None:
    assert agreed_plan(RICH, alone()) is RICH
