from __future__ import annotations

from pathlib import Path

import pytest
import torch

from averaging.system.machine_limits import Memory
from peer.training import card_at_work as module
from peer.training.card_at_work import CardAtWork
from peer.training.local_training import LocalTrainer, card_at_work
from peer.training.plan.card_memory_core import flops_per_token, whole_load
from peer.training.plan.card_plan import FLOAT32, CardPlan, Switch, Wishes
from peer.training.plan.cards_core import Card
from peer.training.plan.layout import Mesh
from peer.training.plan.plan_core import expected_bytes
from protocol.run.training_sections import InnerSection
from tests.peer.training.plan.test_plan_core import MODELS, RTX_3060
from tests.peer.training_world import MODEL, training_plan

INNER = InnerSection(learning_rate=1e-3, batch_tokens=1 << 16)
CPU = torch.device("cpu")


@pytest.fixture
def rtx_3060(monkeypatch: pytest.MonkeyPatch) -> Card:
    monkeypatch.setattr(module, "read_card", lambda _device: RTX_3060)
    monkeypatch.setattr(module, "why_no_compiler", lambda _kind: "")
    monkeypatch.setattr(module, "read_memory", lambda: Memory(32 << 30, 32 << 30))
    return RTX_3060


def test_a_process_chooses_the_plan_of_its_card_and_tells_why(rtx_3060: Card) -> None:
    load = whole_load(MODELS["350M"])
    card = CardAtWork(CPU, load, INNER, Wishes())
    assert card.plan == CardPlan(precision="bf16", is_compiled=True)
    first, report = card.report(0), card.report(2)
    assert first.expected_bytes > report.expected_bytes, "the largest that fits, before one was found"
    assert report.reason == f"RTX 3060, 12 GB: bf16, compiled, {report.expected_bytes / 1e9:.1f} of 11.3 GB"
    assert (report.kind, report.flops_per_token, report.used_bytes) == ("cuda", flops_per_token(load), 0)
    assert report.peak_flops == pytest.approx(25.5e12)
    assert report.mfu(3000.0) == pytest.approx(3000.0 * report.flops_per_token / 25.5e12)


def test_a_given_plan_is_kept_and_the_reason_is_its_own(rtx_3060: Card) -> None:
    given = CardPlan(precision="bf16", checkpointing="full")
    card = CardAtWork(CPU, whole_load(MODELS["350M"]), INNER, Wishes(), given=given)
    assert card.plan == given
    assert "activations computed again" in card.report(1).reason


def test_a_rank_chooses_for_its_part_of_a_model_that_no_card_holds_alone(tmp_path: Path, rtx_3060: Card) -> None:
    mesh = Mesh(shard=4)
    load = whole_load(MODELS["1B"])
    alone, rank = CardAtWork(CPU, load, INNER, Wishes()), CardAtWork(CPU, load, INNER, Wishes(), mesh=mesh)
    assert alone.plan.offload != "none"
    assert rank.plan.offload == "none"
    assert rank.report(1).expected_bytes == expected_bytes(rtx_3060, load, INNER, 1, rank.plan, mesh)
    assert "not expected to fit" not in rank.report(0).reason
    plan = training_plan(tmp_path)
    ranks = plan.model_copy(update={"mesh": mesh})
    assert card_at_work(ranks, CPU).report(1).expected_bytes < card_at_work(plan, CPU).report(1).expected_bytes


def test_replicas_beside_each_other_share_the_machines_memory(rtx_3060: Card) -> None:
    load = whole_load(MODELS["1B"])
    found = [CardAtWork(CPU, load, INNER, Wishes(), num_replicas=number).report(1).most_away for number in (1, 2, 4)]
    assert found == ["all", "moments", "none"], "16 and 8 bytes a value, in half of 32, 16 and 8 GB"


def test_the_owners_wishes_and_limit_reach_the_plan(rtx_3060: Card) -> None:
    wishes = Wishes(precision="fp32", compiles="off", fit="small")
    card = CardAtWork(CPU, whole_load(MODELS["136M"]), INNER, wishes, most_bytes=4_000_000_000)
    assert card.plan == CardPlan(precision="fp32", checkpointing="full")
    assert card.report(0).usable_bytes == 4_000_000_000


def test_a_card_without_a_compiler_trains_eagerly_and_a_line_says_why(
    rtx_3060: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = whole_load(MODELS["350M"])
    assert CardAtWork(CPU, load, INNER, Wishes()).why_eager == ""
    monkeypatch.setattr(module, "why_no_compiler", lambda _kind: "there is no C compiler (install gcc)")
    card = CardAtWork(CPU, load, INNER, Wishes())
    assert not card.plan.is_compiled
    assert card.why_eager == "not compiled, there is no C compiler (install gcc); training goes on more slowly"
    assert CardAtWork(CPU, load, INNER, Wishes(compiles="off")).why_eager == ""


@pytest.mark.parametrize(("compiles", "said"), [("auto", ""), ("on", "torch compiles nothing for CPU")])
def test_an_owner_who_asks_for_a_compiler_on_a_processor_is_told(compiles: Switch, said: str) -> None:
    line = CardAtWork(CPU, whole_load(MODEL), INNER, Wishes(compiles=compiles)).why_eager
    assert said in line
    assert bool(line) == bool(said)


def test_a_small_model_on_a_processor_is_trained_plainly(tmp_path: Path) -> None:
    trainer = LocalTrainer(training_plan(tmp_path))
    assert trainer.card.plan == FLOAT32
    report = trainer.card.report(trainer.micro_batch)
    assert (report.kind, report.peak_flops, report.mfu(100.0)) == ("cpu", None, None)
    assert 0 < report.expected_bytes < report.usable_bytes
    assert report.flops_per_token == flops_per_token(whole_load(MODEL))
