"""The training process of a stage, in a thread: it does what it is told, one order after another, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from peer.pipeline.stage.stage_worker import is_stage_plan
from peer.training.worker_channel import Area
from protocol.tensors.stage_schema import stage_schema
from tests.peer.whole_snapshot import decode_snapshot
from tests.peer.worker_world import PIPELINE, STEP_TOKENS, Asker, anchor, one_step, stage_plan, stage_worker


def _opened(asker: Asker, stage: int, folder: Path) -> None:
    asker.vectors.write(Area.IN, anchor(stage_plan(folder, stage)))
    asker.ask("open", lane=7)


@pytest.mark.parametrize("recomputes", [False, True], ids=["graphs kept", "recomputed"])
def test_two_stages_train_a_step_together_by_orders_alone(tmp_path: Path, recomputes: bool) -> None:
    pipeline = PIPELINE.model_copy(update={"recomputes": recomputes})
    first_plan, last_plan = (stage_plan(tmp_path, stage, pipeline=pipeline) for stage in range(2))
    with stage_worker(first_plan) as first, stage_worker(last_plan) as last:
        _opened(first, 0, tmp_path)
        _opened(last, 1, tmp_path)
        for number in range(PIPELINE.micro_batches):
            there = {"micro_batch": number, "is_backward": False}
            back = {"micro_batch": number, "is_backward": True}
            _, forward = first.ask("run_pass", **there)
            last.ask("arrived", forward, **there)
            assert last.ask("run_pass", **there)[1] == b""
            _, gradient = last.ask("run_pass", **back)
            first.ask("arrived", gradient, **back)
            reply, left = first.ask("run_pass", **back)
            assert left == b""
            assert reply.busy_s > 0.0
        squares = [float.fromhex(asker.ask("square")[0].square) for asker in (first, last)]
        for asker in (first, last):
            reply, _ = asker.ask("take_step", whole_square=sum(squares).hex())
            assert reply.counts
        assert reply.loss_nats is not None
        for asker, plan in ((first, first_plan), (last, last_plan)):
            asker.ask("theta")
            assert not torch.equal(asker.vectors.read(Area.OUT), anchor(plan))


def test_a_snapshot_brings_the_stage_back_and_adopted_parameters_are_gone_on_from(tmp_path: Path) -> None:
    plan = stage_plan(tmp_path, 1)
    with stage_worker(plan) as asker:
        _opened(asker, 1, tmp_path)
        snapshot = asker.snapshot()
        asker.vectors.write(Area.IN, anchor(plan) + 1.0)
        asker.ask("adopt", schedule_tokens=STEP_TOKENS)
        asker.ask("theta")
        assert torch.equal(asker.vectors.read(Area.OUT), anchor(plan) + 1.0)
        asker.restore(snapshot)
        asker.ask("theta")
        assert torch.equal(asker.vectors.read(Area.OUT), anchor(plan))


def test_the_moments_outlive_a_lane_whose_parameters_the_next_one_does_not_keep(tmp_path: Path) -> None:
    plans = [stage_plan(tmp_path, stage) for stage in range(2)]
    with stage_worker(plans[0]) as first, stage_worker(plans[1]) as last:
        _opened(first, 0, tmp_path)
        _opened(last, 1, tmp_path)
        one_step(first, last)
        schema = stage_schema(plans[1].stages, 1)
        before = decode_snapshot(last.snapshot(), schema)
        last.ask("run_pass", micro_batch=0)  # a pass that the lane's end leaves unfinished
        last.vectors.write(Area.IN, anchor(plans[1]) + 1.0)
        last.ask("open", lane=8)
        after = decode_snapshot(last.snapshot(), schema)
    assert torch.equal(after.theta_N, anchor(plans[1]) + 1.0)
    assert len(after.moments) > 0
    assert all(torch.equal(one, other) for one, other in zip(before.moments, after.moments, strict=True))


def test_what_others_sent_and_is_no_good_is_refused_and_what_cannot_be_done_fails_and_the_process_goes_on(
    tmp_path: Path,
) -> None:
    with stage_worker(stage_plan(tmp_path, 1)) as asker:
        early, _ = asker.ask("run_pass")
        assert (early.failed, early.refused) == ("run_pass without a lane", "")
        _opened(asker, 1, tmp_path)
        strange, _ = asker.ask("arrived", b"no boundary message")
        assert strange.refused
        lacking, _ = asker.ask("run_pass")
        assert "without activations" in lacking.failed
        other = asker.restore(b"no snapshot")
        assert other.refused or other.failed
        asker.ask("theta")
        assert torch.equal(asker.vectors.read(Area.OUT), anchor(stage_plan(tmp_path, 1)))


_FIRST_PASS = """
import sys
import torch
from peer.pipeline.stage.stage_worker import warm_up
modules = [len(sys.modules)]
warm_up()
modules.append(len(sys.modules))
layer = torch.nn.Linear(4, 4)
torch.autograd.backward(layer(torch.ones(2, 4, requires_grad=True)), torch.ones(2, 4))
print(modules[1] - modules[0], len(sys.modules) - modules[1])
"""


def test_the_first_backward_pass_of_a_process_that_was_warmed_up_imports_nothing() -> None:
    reported = subprocess.run([sys.executable, "-c", _FIRST_PASS], capture_output=True, text=True, check=True).stdout
    before, at_the_pass = map(int, reported.split())
    assert at_the_pass == 0
    assert before > 0, "else there is nothing to do beforehand any more: warm_up can go"


def test_what_its_owner_leaves_of_the_machine_is_in_the_time_that_a_pass_takes(tmp_path: Path) -> None:
    with stage_worker(stage_plan(tmp_path, 0)) as asker:
        _opened(asker, 0, tmp_path)
        asker.ask("run_pass", micro_batch=0)
        quick, _ = asker.ask("run_pass", micro_batch=1)
        asker.ask("slow", factor=20.0)
        asker.ask("open", lane=8)
        slow, _ = asker.ask("run_pass", micro_batch=0)
        assert slow.busy_s > 2.0 * quick.busy_s


def test_a_plan_of_a_stage_is_told_from_one_of_whole_units() -> None:
    assert is_stage_plan(b'{"kind": "stage"}')
    assert not is_stage_plan(b'{"kind": "plan"}')
    assert not is_stage_plan(b"[]")
