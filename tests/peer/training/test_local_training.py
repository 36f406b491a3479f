from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.data.assignment import heldout_windows
from averaging.data.packing.packing import Packing, pack
from averaging.data.sources.texts import Text
from averaging.data.tokenizer import ByteTokenizer
from peer.models.decoder import Decoder, load_flat
from peer.training import local_training
from peer.training.evaluation import HELDOUT_WINDOWS
from peer.training.local_training import LocalTrainer
from peer.training.plan.card_plan import FLOAT32
from peer.training.plan.layout import Mesh
from peer.training.ranks.rank_group import RankGroup
from peer.training.replica.text_batches import text_batch
from peer.training.training_plan import TrainingPlan
from protocol.errors import LocalProtocolError
from protocol.run.training_sections import InnerSection
from protocol.tensors.adapter_schema import adapter_schema
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_config import model_schema
from tests.averaging.arithmetic.picked_tensors import picked
from tests.peer.adapter_world import ADAPTER, adapter_plan
from tests.peer.training_world import BATCH_TOKENS, MODEL, training_plan

ANCHOR_N = genesis_anchor(model_schema(MODEL), 1)


def _trainer(plan: TrainingPlan) -> LocalTrainer:
    trainer = LocalTrainer(plan)
    trainer.load(ANCHOR_N, 0)
    return trainer


def test_training_lowers_the_held_out_loss_and_counts_its_tokens(tmp_path: Path) -> None:
    trainer = _trainer(training_plan(tmp_path))
    before = trainer.evaluate(ANCHOR_N)
    assert before == pytest.approx(math.log(MODEL.vocab_size), abs=0.5)
    for _ in range(60):
        counters = trainer.step()
    assert counters.tokens_ready == counters.tokens_trained == 60 * BATCH_TOKENS
    assert (counters.step, trainer.steps_ready()) == (60, 60)
    assert trainer.evaluate(trainer.theta()) < before - 1.0


def test_a_step_is_a_function_of_peer_and_position_whatever_the_micro_batch(tmp_path: Path) -> None:
    def after(**changes: object) -> torch.Tensor:
        trainer = _trainer(training_plan(tmp_path, **changes))
        for _ in range(3):
            trainer.step()
        return trainer.theta()

    whole_N = after()
    assert torch.equal(whole_N, after())
    # AdamW's first steps follow the gradient's sign, so a rounding difference may show where it is next to zero.
    torch.testing.assert_close(after(micro_batch=1), whole_N, atol=2e-3, rtol=0)
    assert not torch.allclose(after(peer="other"), whole_N, atol=2e-3, rtol=0)
    assert not torch.allclose(after(first_step=7), whole_N, atol=2e-3, rtol=0)


def test_a_shift_moves_theta_and_takes_the_credited_tokens_away(tmp_path: Path) -> None:
    trainer = _trainer(training_plan(tmp_path))
    for _ in range(5):
        trainer.step()
    theta_N, shift_N = trainer.theta(), torch.linspace(-1, 1, ANCHOR_N.numel())
    trainer.shift(shift_N, 3 * BATCH_TOKENS, 1000)
    assert torch.equal(trainer.theta(), theta_N + shift_N)
    assert (trainer.counters.tokens_ready, trainer.steps_ready()) == (2 * BATCH_TOKENS, 2)
    assert trainer.counters.tokens_trained == 5 * BATCH_TOKENS
    trainer.shift(shift_N, 99 * BATCH_TOKENS, 1000)
    assert trainer.counters.tokens_ready == 0


def test_a_load_is_exact_and_keeps_the_data_position(tmp_path: Path) -> None:
    trainer = _trainer(training_plan(tmp_path))
    for _ in range(3):
        trainer.step()
    trainer.load(ANCHOR_N, 500)
    assert torch.equal(trainer.theta(), ANCHOR_N)
    counters = trainer.counters
    assert (counters.step, counters.tokens_ready, trainer.steps_ready()) == (3, 0, 0)


def test_each_unit_is_loaded_shifted_and_counted_by_itself(tmp_path: Path) -> None:
    trainer = _trainer(training_plan(tmp_path, num_fragments=1))
    for _ in range(2):
        trainer.step()
    layers_N, rest_N = trainer.theta(0), trainer.theta(1)
    shift_N = torch.linspace(-1, 1, rest_N.numel())
    trainer.shift(shift_N, BATCH_TOKENS, 0, place=1)
    assert torch.equal(trainer.theta(0), layers_N)
    assert torch.equal(trainer.theta(1), rest_N + shift_N)
    assert trainer.counters.ready == (2 * BATCH_TOKENS, BATCH_TOKENS)
    trainer.load_unit(0, torch.zeros_like(layers_N), 0)
    assert torch.equal(trainer.theta(0), torch.zeros_like(layers_N))
    assert torch.equal(trainer.theta(1), rest_N + shift_N)
    assert trainer.counters.ready == (0, BATCH_TOKENS)
    assert trainer.step().ready == (BATCH_TOKENS, 2 * BATCH_TOKENS)


def test_a_model_in_units_trains_as_the_same_model_in_one(tmp_path: Path) -> None:
    whole, parted = LocalTrainer(training_plan(tmp_path)), LocalTrainer(training_plan(tmp_path, num_fragments=1))
    values_N = picked(ANCHOR_N, whole.schema, parted.schema)
    whole.load(ANCHOR_N, 0)
    parted.load(values_N, 0)
    assert parted.evaluate(values_N) == whole.evaluate(ANCHOR_N)
    for _ in range(2):
        whole.step()
        parted.step()
    theta_N = torch.cat([parted.theta(place) for place in range(2)])
    # the gradient's norm is summed in another order
    torch.testing.assert_close(theta_N, picked(whole.theta(), whole.schema, parted.schema), atol=2e-3, rtol=0)


def test_of_theta_only_a_share_is_kept_in_the_parts_that_are_named(tmp_path: Path) -> None:
    trainer = _trainer(training_plan(tmp_path))
    theta_N = trainer.theta()
    begin, stop = 5, theta_N.numel() - 3
    trainer.keep(0, [(begin, stop, 0.5)])
    expected_N = theta_N.clone()
    expected_N[begin:stop] *= 0.5
    assert torch.equal(trainer.theta(), expected_N)


def test_evaluating_other_parameters_leaves_theta_alone(tmp_path: Path) -> None:
    trainer = _trainer(training_plan(tmp_path))
    trainer.step()
    theta_N = trainer.theta()
    assert trainer.evaluate(ANCHOR_N) == trainer.evaluate(ANCHOR_N)
    assert not math.isfinite(trainer.evaluate(torch.full_like(ANCHOR_N, math.nan)))
    assert torch.equal(trainer.theta(), theta_N)


def test_a_step_without_a_finite_gradient_changes_nothing_and_does_not_count(tmp_path: Path) -> None:
    trainer = _trainer(training_plan(tmp_path))
    trainer.step()
    trainer.load(torch.full_like(ANCHOR_N, math.nan), 0)
    counters = trainer.step()
    assert (counters.step, counters.tokens_ready, counters.tokens_trained) == (2, 0, BATCH_TOKENS)
    # Neither the parameters nor the optimizer's moments are spoilt: from good parameters it trains on.
    trainer.load(ANCHOR_N, 0)
    assert trainer.step().tokens_ready == BATCH_TOKENS
    assert bool(torch.isfinite(trainer.theta()).all())


def test_losses_leave_in_nats_per_byte(tmp_path: Path) -> None:
    plain = _trainer(training_plan(tmp_path))
    longer = _trainer(training_plan(tmp_path, train_bytes_per_token=4.0, heldout_bytes_per_token=2.0))
    assert longer.evaluate(ANCHOR_N) == plain.evaluate(ANCHOR_N) / 2
    assert longer.step().loss_nats == pytest.approx((plain.step().loss_nats or 0.0) / 4)
    assert torch.equal(longer.theta(), plain.theta())


def test_prose_is_measured_by_itself(tmp_path: Path) -> None:
    plan = training_plan(tmp_path)
    same = _trainer(plan.model_copy(update={"prose_shards": plan.heldout_shards, "prose_bytes_per_token": 2.0}))
    assert same.evaluate_prose(ANCHOR_N) == same.evaluate(ANCHOR_N) / 2
    theta_N = same.theta()
    same.evaluate_prose(ANCHOR_N * 2)
    assert torch.equal(same.theta(), theta_N)


def test_wide_tokens_train_as_narrow_ones(tmp_path: Path) -> None:
    plan = training_plan(tmp_path)
    wide = []
    for path in (*plan.train_shards, *plan.heldout_shards):
        wide.append(path.with_name(f"{path.name}.wide"))
        wide[-1].write_bytes(np.fromfile(path, dtype="<u2").astype("<u4").tobytes())
    cut = len(plan.train_shards)
    trainer = _trainer(
        plan.model_copy(update={"train_shards": wide[:cut], "heldout_shards": wide[cut:], "token_bytes": 4})
    )
    narrow = _trainer(plan)
    assert trainer.step() == narrow.step()
    assert trainer.evaluate(ANCHOR_N) == narrow.evaluate(ANCHOR_N)


def test_the_cards_memory_is_limited_before_the_model_is_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    monkeypatch.setattr(local_training, "limit_memory", lambda *limit: reported.append(limit))
    monkeypatch.setattr(local_training, "Decoder", lambda config: reported.append("model") or Decoder(config))
    LocalTrainer(training_plan(tmp_path))
    LocalTrainer(training_plan(tmp_path, max_gpu_memory_bytes=7))
    assert reported == ["model", (torch.device("cpu"), 7), "model"]


MIXTURE = MixtureConfig(num_experts=3, ffn_dim=8)


def _expert_trainer(folder: Path, *experts: int, **changes: object) -> LocalTrainer:
    units = held_units(MODEL, MIXTURE, experts)
    whole = held_units(MODEL, MIXTURE, range(MIXTURE.num_experts)).whole
    trainer = LocalTrainer(training_plan(folder, mixture=MIXTURE, experts=experts, **changes))
    trainer.load(torch.cat([genesis_anchor(schema, 1, whole) for schema in units.schemas]), 0)
    return trainer


def test_a_holder_trains_the_trunk_in_every_step_and_its_experts_in_turn(tmp_path: Path) -> None:
    trainer = _expert_trainer(tmp_path, 0, 2)
    assert [schema.unit for schema in trainer.units.schemas] == ["trunk", "expert-0", "expert-2"]
    before = [trainer.theta(place) for place in range(3)]
    trainer.step()
    after = [trainer.theta(place) for place in range(3)]
    assert [torch.equal(one, other) for one, other in zip(before, after, strict=True)] == [False, False, True]
    assert trainer.counters.ready == (BATCH_TOKENS, BATCH_TOKENS, 0)
    trainer.step()
    assert torch.equal(trainer.theta(1), after[1])
    assert not torch.equal(trainer.theta(2), before[2])
    assert trainer.counters.ready == (2 * BATCH_TOKENS, BATCH_TOKENS, BATCH_TOKENS)
    assert [trainer.steps_ready(place) for place in range(3)] == [2, 1, 1]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_lowers_the_loss_of_a_holders_own_model(tmp_path: Path, optimizer: str) -> None:
    inner = InnerSection(learning_rate=0.01, batch_tokens=BATCH_TOKENS, optimizer=optimizer)  # type: ignore[arg-type]
    trainer = _expert_trainer(tmp_path, 1, inner=inner, micro_batch=0)
    assert trainer.find_micro_batch() >= 1
    anchor_N = torch.cat([trainer.theta(place) for place in range(2)])
    before = trainer.evaluate(anchor_N)
    for _ in range(30):
        trainer.step()
    assert trainer.evaluate(torch.cat([trainer.theta(place) for place in range(2)])) < before - 0.5
    assert trainer.evaluate(anchor_N) == pytest.approx(before, abs=1e-6)


def test_an_expert_with_text_of_its_own_is_trained_and_measured_on_that(tmp_path: Path) -> None:
    plans = {}
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        plans[name] = training_plan(tmp_path / name, text=f"{name} is of its own kind. " * 200)
    one, other = plans["one"], plans["other"]
    trainer = _expert_trainer(
        tmp_path / "one",
        0,
        2,
        expert_shards=(one.train_shards, other.train_shards),
        expert_heldout_shards=(one.heldout_shards, other.heldout_shards),
    )
    for _ in range(40):
        trainer.step()
    theta_N = torch.cat([trainer.theta(place) for place in range(3)])
    swapped = LocalTrainer(
        trainer.plan.model_copy(update={"expert_heldout_shards": (other.heldout_shards, one.heldout_shards)})
    )
    assert trainer.evaluate(theta_N) < swapped.evaluate(theta_N)
    each = [trainer.evaluate(theta_N, expert) for expert in (0, 2)]
    assert trainer.evaluate(theta_N) == pytest.approx(sum(each) / 2)
    longer = LocalTrainer(trainer.plan.model_copy(update={"expert_heldout_bytes_per_token": (2.0, 4.0)}))
    assert [longer.evaluate(theta_N, expert) for expert in (0, 2)] == [each[0] / 2, each[1] / 4]


def test_an_island_takes_each_stride_th_data_position(tmp_path: Path) -> None:
    plan = training_plan(tmp_path)
    island = _trainer(plan.model_copy(update={"stride": 3, "first_step": 7}))
    first = island.step()
    after_first_N = island.theta()
    second = island.step()
    assert (first.step, second.step, island.steps_ready()) == (10, 13, 2)
    assert _trainer(plan.model_copy(update={"first_step": 7})).step().loss_nats == first.loss_nats
    at_ten = _trainer(plan.model_copy(update={"first_step": 10}))
    at_ten.load(after_first_N, 0)
    assert at_ten.step().loss_nats == second.loss_nats


def test_an_adapter_lowers_the_loss_over_its_base_and_a_restarted_process_goes_on_with_its_moments(
    tmp_path: Path,
) -> None:
    plan = adapter_plan(tmp_path, moments_file=tmp_path / "moments.safetensors", moments_within_tokens=10_000_000)
    trainer = LocalTrainer(plan)
    anchor_N = genesis_anchor(adapter_schema(MODEL, ADAPTER), 1)
    trainer.load(anchor_N, 0)
    before = trainer.evaluate(anchor_N)
    for _ in range(40):
        trainer.step()
    theta_N = trainer.theta()
    assert trainer.evaluate(theta_N) < before - 0.5
    assert trainer.evaluate(anchor_N) == before
    assert trainer.moments_bytes == 8 * len(anchor_N)
    trainer.finish()
    again = LocalTrainer(plan.model_copy(update={"first_step": 40}))
    again.load(theta_N, 0)
    again.take_up_moments()
    trainer.load(theta_N, 0)
    again.step()
    trainer.step()
    # without them its first step would be a whole learning rate for each value
    torch.testing.assert_close(again.theta(), trainer.theta(), atol=1e-3, rtol=0)


def test_several_ranks_for_an_adapter_are_refused(tmp_path: Path) -> None:
    group = SimpleNamespace(size=2, rank=0, is_first=True, mesh=Mesh(shard=2))
    with pytest.raises(LocalProtocolError, match="an adapter over 2 ranks; expected one rank"):
        local_training._replica_of(adapter_plan(tmp_path), FLOAT32, torch.device("cpu"), cast(RankGroup, group))


def _mixed_plan(folder: Path, **changes: object) -> TrainingPlan:
    """A mixture of two sources, of which every fourth byte counts and documents are isolated."""
    folder.mkdir(exist_ok=True)
    parts = [("train", 0, 40), ("heldout", 0, 10), ("train", 1, 30), ("heldout", 1, 10)]
    texts = []
    for split, source, number in parts:
        for place in range(number):
            data = b"source %d, document %d says something" % (source, place)
            spans = tuple((begin, begin + 1) for begin in range(source, len(data), 4))
            texts.append(Text(data, split, counted=spans, source=source))
    packing = Packing(4096, "mixture", "none", has_counts=True, has_starts=True, source_names=("a", "b"))
    manifest = pack(texts, ByteTokenizer(), folder, packing)
    shards = {name: tuple(folder / entry.sha256 for entry in manifest.part(name)) for name in ("train", "heldout")}
    marked = {
        "train_shards": shards["train"],
        "heldout_shards": shards["heldout"],
        "has_counts": True,
        "has_starts": True,
        "train_spans": manifest.source_spans("train", (3.0, 1.0)),
        "heldout_spans": manifest.source_spans("heldout", (3.0, 1.0)),
    }
    return training_plan(folder, **{**marked, **changes})


@pytest.mark.parametrize("micro_batch", [1, 4])
def test_a_marked_step_and_evaluation_are_the_same_whatever_the_micro_batch(tmp_path: Path, micro_batch: int) -> None:
    whole = _trainer(_mixed_plan(tmp_path / "a", micro_batch=2))
    cut = _trainer(_mixed_plan(tmp_path / "b", micro_batch=micro_batch))
    one, other = whole.step(), cut.step()
    assert one.loss_nats == pytest.approx(other.loss_nats, rel=1e-5)
    assert torch.allclose(whole.theta(), cut.theta(), atol=1e-5)
    assert whole.evaluate(ANCHOR_N) == pytest.approx(cut.evaluate(ANCHOR_N), rel=1e-5)
    assert sum(one.source_tokens) == one.tokens_trained == BATCH_TOKENS, "all tokens of the windows are credited"


def test_a_held_out_loss_is_the_mean_over_tokens_that_count(tmp_path: Path) -> None:
    trainer = _trainer(_mixed_plan(tmp_path))
    reader, window = trainer._heldout[None], MODEL.context_tokens + 1
    starts = reader.aligned(heldout_windows(HELDOUT_WINDOWS, reader.spans, window), window)
    total, count = 0.0, 0
    model = Decoder(MODEL)
    load_flat(model, trainer.schema, ANCHOR_N)
    for start in starts:
        batch = text_batch(reader, [start], window)
        counted = int((batch.targets_BT >= 0).sum())
        if counted:
            total += float(model.loss(batch.tokens_BT[:, :-1], batch.targets_BT, batch.marks).detach()) * counted
            count += counted
    assert trainer.evaluate(ANCHOR_N) == pytest.approx(total / count, rel=1e-5)


def test_windows_in_which_nothing_counts_train_nothing_and_are_not_credited(tmp_path: Path) -> None:
    texts = [Text(b"nothing counts here " * 40, "train", counted=()), Text(b"x" * 40, "heldout", counted=((0, 40),))]
    manifest = pack(texts, ByteTokenizer(), tmp_path, Packing(4096, "chats", "none", has_counts=True))
    shards = tuple(tmp_path / entry.sha256 for entry in manifest.part("train"))
    plan = training_plan(tmp_path, train_shards=shards, heldout_shards=shards, has_counts=True)
    trainer = _trainer(plan)
    found = trainer.step()
    assert (found.step, found.tokens_trained, found.tokens_ready) == (1, 0, 0)
    assert torch.equal(trainer.theta(), ANCHOR_N)
