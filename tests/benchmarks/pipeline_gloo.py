"""`python -m tests.benchmarks.pipeline_gloo FOLDER RANK ADDRESS PORT`: one stage of torch's own pipeline, over gloo, in clear text.

The stages are ours, and so is the optimizer, with the gradient clipped by the whole model's norm. Rank 0 reads "SCHEDULE STEPS" from
its input, and prints {"seconds", "loss_nats"} once all stages have taken so many steps; before the first, {} once all are connected.
Schedules have models of their own.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as distributed
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional

from peer.models.stage_model import StageDecoder
from peer.pipeline.stage.stage_trainer import StageTrainer
from tests.benchmarks import pipeline_plan as plan

SCHEDULES: Final = ("gpipe", "1f1b")
_TORCHS: Final = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
TIMEOUT_S: Final = 3600.0


def _loss(logits_BTV: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


@dataclass
class Rank:
    """One stage in one of torch's schedules."""

    folder: Path
    stage: int
    trainer: StageTrainer
    schedule: Any
    step: int = 0

    @classmethod
    def of(cls, folder: Path, stage: int, schedule: str) -> Rank:
        """With the parameters that all begin with."""
        model = StageDecoder(plan.STAGES, stage)
        trainer = StageTrainer(model, plan.INNER, most_kept=plan.NUM_MICRO_BATCHES)
        trainer.load(plan.anchor_of(stage))
        torchs = PipelineStage(model, stage, plan.NUM_STAGES, torch.device("cpu"))
        return cls(folder, stage, trainer, _TORCHS[schedule](torchs, plan.NUM_MICRO_BATCHES, loss_fn=_loss))

    def take_step(self) -> float:
        """One inner step; the mean loss in nats a token at the last stage, else 0."""
        losses: list[torch.Tensor] = []
        if self.stage == 0:
            self.schedule.step(plan.step_tokens(self.folder, self.step)[:, :-1])
        elif self.stage == plan.NUM_STAGES - 1:
            targets = plan.step_tokens(self.folder, self.step)[:, 1:]
            self.schedule.step(target=targets, losses=losses, return_outputs=False)
        else:
            self.schedule.step()
        square = torch.tensor(self.trainer.gradient_square(), dtype=torch.float64)
        distributed.all_reduce(square)
        self.trainer.take_step(float(square), plan.INNER.learning_rate)
        self.step += 1
        return float(torch.stack(losses).mean().detach()) if losses else 0.0


def main(arguments: list[str]) -> None:
    """Steps as they are asked for, until the input of rank 0 ends."""
    folder, rank, address, port = Path(arguments[0]), int(arguments[1]), arguments[2], int(arguments[3])
    torch.set_num_threads(1)
    timeout = timedelta(seconds=TIMEOUT_S)
    store = distributed.TCPStore(address, port, plan.NUM_STAGES, rank == 0, timeout)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=plan.NUM_STAGES, timeout=timeout)
    ranks = [Rank.of(folder, rank, schedule) for schedule in SCHEDULES]
    distributed.barrier()  # all are connected
    if rank == 0:
        print(json.dumps({}), flush=True)
    while True:
        asked = torch.zeros(2, dtype=torch.int64)
        words = sys.stdin.readline().split() if rank == 0 else []
        if words:
            asked = torch.tensor([SCHEDULES.index(words[0]), int(words[1])])
        distributed.broadcast(asked, 0)
        if not int(asked[1]):
            break
        began_s, loss = time.monotonic(), torch.zeros(1)
        for _ in range(int(asked[1])):
            loss.fill_(ranks[int(asked[0])].take_step())
        distributed.all_reduce(loss)
        if rank == 0:
            print(json.dumps({"seconds": time.monotonic() - began_s, "loss_nats": float(loss)}), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
