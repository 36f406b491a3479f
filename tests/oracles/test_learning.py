"""The emulation behind `tests.benchmarks.learning`: pieces make no difference, and its simplest rounds are synchronous training."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from averaging.models.llama.config import LlamaConfig
from peer.forecast.loss_law_core import members_factor
from protocol.rounds.messages.record import OuterStep
from protocol.tensors.model_config import model_schema
from tests.benchmarks.convergence import BadRunsError, Runs
from tests.benchmarks.convergence_training import Corpus, Outcome, Training
from tests.benchmarks.convergence_ways import STREAMING, SYNC, SYNC_MUON, Ramp, Regime, Trial, Way
from tests.benchmarks.learning.law_rows import law_rows
from tests.benchmarks.learning.loss_rows import rows_of, standings
from tests.benchmarks.learning.pieces import Piece
from tests.benchmarks.learning.saved_training import BadSavedTrainingError
from tests.benchmarks.learning.sizes import SIZES, Size
from tests.benchmarks.learning.table_plan import TablePlan, rounds

MODEL = LlamaConfig(dim=16, num_layers=2, num_heads=2, num_kv_heads=2, ffn_dim=24, context_tokens=16, is_tied=True)
SIZE = Size("tiny", MODEL, 64, 12, (2e-3, 4e-3, 8e-3))
TOPK = rounds("adamw", 3, "topk", OuterStep("nesterov", 0.7, 0.9))
STREAMED = replace(STREAMING, ramp=Ramp(4), delay=2, codec="int8", optimizer="muon")
STEP_S = 1.0


@pytest.fixture
def corpus() -> Corpus:
    torch.manual_seed(1)
    words = np.frombuffer(b"def learn(self): return None\n" * 200, dtype=np.uint8)
    return Corpus(words, words[:2000])


def _whole(trial: Trial, text: Corpus) -> Outcome:
    return Training(trial, text).run()


def _in_pieces(trial: Trial, text: Corpus, folder: Path, steps: int) -> tuple[Outcome, int]:
    """The outcome, and in how many pieces of so many steps."""
    for pieces in count(1):
        outcome = Piece(trial, text, folder).run_until(steps * STEP_S, partial(next, count(0.0, STEP_S)))
        if outcome is not None:
            return outcome, pieces
    raise AssertionError("unreachable")


@pytest.mark.parametrize("way", [SYNC_MUON, TOPK, replace(TOPK, tables="fp32"), STREAMED], ids=lambda way: way.codec)
def test_a_training_in_pieces_has_the_same_loss_bytes_and_curve_as_a_whole_one(
    way: Way, corpus: Corpus, tmp_path: Path
) -> None:
    trial = Trial(SIZE.regime(2), way, 0, 4e-3)
    found, pieces = _in_pieces(trial, corpus, tmp_path, 5)
    whole = Piece(trial, corpus, tmp_path).run_until(1e9, lambda: 0.0)
    assert whole is not None
    assert pieces == 3
    assert {**asdict(found), "cpu_s": 0} == {**asdict(whole), "cpu_s": 0}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("way", "sync"), [(rounds("adamw", 1), SYNC), (rounds("muon", 1), SYNC_MUON)])
def test_one_member_with_rounds_of_one_step_and_the_plain_mean_in_float32_is_synchronous_training(
    way: Way, sync: Way, corpus: Corpus
) -> None:
    regime = SIZE.regime(1)
    found, expected = (_whole(Trial(regime, each, 0, 4e-3), corpus) for each in (way, sync))
    assert found.num_rounds == regime.num_steps
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)


def test_a_damaged_file_between_two_pieces_and_one_of_another_training_are_refused_with_their_name(
    corpus: Corpus, tmp_path: Path
) -> None:
    trial = Trial(SIZE.regime(2), TOPK, 0, 4e-3)
    piece = Piece(trial, corpus, tmp_path)
    assert piece.run_until(5, partial(next, count())) is None
    other = Piece(replace(trial, seed=1), corpus, tmp_path)
    other.path.write_bytes(piece.path.read_bytes())
    with pytest.raises(BadSavedTrainingError, match=f"{other.path.name}: it belongs to another training; delete it"):
        other.run_until(1e9)
    piece.path.write_bytes(piece.path.read_bytes()[:-100])
    with pytest.raises(BadSavedTrainingError, match=piece.path.name):
        piece.run_until(1e9)


@pytest.mark.parametrize(
    "bad", [b"garbage", b"\xff\xfe\x00", b"[1, 2]", b'{"key": "a"}', b'{"loss": 1.0}', b'{"key": "a", "loss": "x"}']
)
def test_a_damaged_line_of_finished_trainings_is_named_and_its_remedy_is_said(bad: bytes, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(b'{"key": "b", "loss": 1.5}\n' + bad + b"\n")
    with pytest.raises(BadRunsError, match=r"runs.jsonl, line 2: .*; expected .*; delete that line"):
        Runs(path)


def test_an_interrupted_last_line_of_finished_trainings_is_cut_off(tmp_path: Path) -> None:
    path, whole = tmp_path / "runs.jsonl", b'{"key": "b", "loss": 1.5}\n'
    path.write_bytes(whole + b'{"key": "c", "lo')
    Runs(path)
    assert path.read_bytes() == whole


def test_the_table_takes_each_familys_best_rate_and_its_gaps_are_over_the_best_reference(tmp_path: Path) -> None:
    size, runs = SIZES["3M"], Runs(tmp_path / "runs.jsonl")
    plan = TablePlan(size, 0, runs)

    def trained(trial: Trial, loss: float) -> None:
        runs.add(trial, asdict(Outcome(loss, 1e6, 1, 1.0, ())))

    assert [row.metric for row in rows_of(size, [plan])] == []
    for trial, loss in zip(plan.trials(["rates"]), (2.2, 2.0, 2.1, 2.0, 1.9, 2.1), strict=True):
        trained(trial, loss)
    for trial in plan.outer_steps("muon"):
        trained(trial, 2.5 if trial.rate != size.rates[1] or trial.way.outer.learning_rate != 1.0 else 2.04)
    (eight,) = plan.in_table("muon", 8, 20, "e3m0")
    assert (eight.rate, eight.regime.num_peers, eight.way.outer.kind) == (size.rates[1], 8, "mean")
    trained(eight, 1.98)
    rows = {row.metric: row for row in rows_of(size, [plan])}
    assert rows["3M: Muon, synchronous; loss over synchronous AdamW"].value == -5.0
    own = [
        row for metric, row in rows.items() if metric.startswith("3M, 8 members: Muon, rounds of 20 steps, e3m0, mean")
    ]
    assert [row.value for row in own] == [-1.0]
    assert rows["3M, target: Muon in e3m0 over synchronous AdamW"].met is True
    assert rows["3M, target: Muon in e3m0 over synchronous Muon"].met is False


def test_the_gap_of_members_stands_beside_that_of_the_law_with_the_error_of_its_loss(tmp_path: Path) -> None:
    size, runs = SIZES["0.1M"], Runs(tmp_path / "runs.jsonl")
    plan = TablePlan(size, 0, runs)
    for trial in plan.of_rates(SYNC):
        runs.add(trial, asdict(Outcome(2.0, 1e6, 1, 1.0, ())))
    assert law_rows(size, standings([plan])) == []
    for way, loss in ((rounds("adamw", 20), 2.2), (rounds("adamw", 20, "int8"), 2.1), (rounds("muon", 20), 2.1)):
        runs.add(plan.of_rates(way)[0], asdict(Outcome(loss, 1e6, 1, 1.0, ())))
    gap, error = law_rows(size, standings([plan]))
    law = members_factor(model_schema(size.model).num_elements, 4)
    assert (gap.value, gap.baseline) == (pytest.approx(10.0), pytest.approx(100 * (law - 1), abs=0.01))
    assert error.value == pytest.approx(100 * (1.1 / law - 1), abs=0.01)


@pytest.mark.parametrize(
    ("best", "swept"),
    [
        (2e-3, [1e-3, 2e-3, 4e-3]),
        (5e-4, [1e-3, 2e-3, 4e-3, 5e-4, 2.5e-4]),
        (8e-3, [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]),
        (1e-9, [1e-3, 2e-3, 4e-3, 5e-4, 2.5e-4, 1.25e-4]),
    ],
)
def test_a_sweep_grows_until_its_best_rate_has_a_worse_one_on_each_side_or_three_were_added(
    best: float, swept: list[float], tmp_path: Path
) -> None:
    plan = TablePlan(SIZES["3M"], 0, Runs(tmp_path / "runs.jsonl"))
    trained: list[float] = []
    while trials := [trial for trial in plan.swept(SYNC) if plan.loss(trial) is None]:
        loss = 2.0 + abs(math.log(trials[0].rate / best))
        plan.runs.add(trials[0], asdict(Outcome(loss, 1e6, 1, 1.0, ())))
        trained.append(trials[0].rate)
    assert trained == pytest.approx(swept)


def test_members_share_the_tokens_of_a_step_at_every_size() -> None:
    for size in SIZES.values():
        regimes: list[Regime] = [size.regime(members) for members in (1, 4, 8)]
        assert {regime.total_tokens for regime in regimes} == {size.step_tokens * size.num_steps}
        assert all(regime.batch_tokens % size.model.context_tokens == 0 for regime in regimes)


def test_a_longer_training_has_more_steps_of_the_same_size_and_a_name_of_its_own() -> None:
    size = SIZES["0.1M"]
    longer = size.longer(4)
    assert (longer.num_steps, longer.name) == (4 * size.num_steps, "0.1M x 4")
    assert (longer.model, longer.step_tokens) == (size.model, size.step_tokens)
    assert size.longer(1) == size
