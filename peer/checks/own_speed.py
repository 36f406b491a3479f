"""`potluck doctor --speed run.toml`: measures how fast this machine trains a run's model, on random tokens. Leaves nothing behind."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from averaging.data.shard_form import TokenBytes
from peer.settings.config import PeerConfig
from peer.training.plan.card_memory_core import flops_per_token, run_load
from peer.training.worker_process import NICENESS
from protocol.errors import ConfigError, MachineError
from protocol.run.manifest import RunConfig, load_run_config
from protocol.tables import whole

if TYPE_CHECKING:
    from peer.training.local_training import LocalTrainer

MEASURED_S: Final = 10.0
"""Steps are timed for so long after the first one, and at least two are."""

_LEAST_STEPS: Final = 2
_SHORT_TOKENS: Final = 1 << 16
_SEQUENCES: Final = 64
"""Tokens of the random text: at least so many, and so many contexts."""


@dataclass(frozen=True, slots=True)
class OwnSpeed:
    """A measured speed.

    Attributes:
        how: the plan of the device, in words.
        mfu: model FLOPs utilisation, 0 to 1; None where the device's peak is not known.
    """

    tokens_per_s: float
    flops_per_s: float
    how: str
    mfu: float | None = None

    def lines(self, run_file: Path) -> list[str]:
        """For people, with the word that `potluck plan` takes."""
        share = f", {self.mfu:.0%} of the device's peak" if self.mfu is not None else ""
        teraflops = f"{self.flops_per_s / 1e12:.4g} TFLOP/s{share}"
        return [
            f"speed  {whole(self.tokens_per_s)} tokens/s with the model of {run_file}, {teraflops}",
            f"       {self.how}",
            f"plan   potluck plan {run_file} --peers 1x{self.tokens_per_s:.0f}tok/s",
            f"       of other models: --peers 1x{self.flops_per_s / 1e12:.4g}tflops",
        ]

    def json(self) -> str:
        """For scripts."""
        return json.dumps(asdict(self))


def take_priority_of_training() -> None:
    """Give this process the priority of a training process, so that it finds as much of a busy processor as that would."""
    os.nice(max(0, NICENESS - os.nice(0)))


def measured_speed(run_file: Path, config: PeerConfig, measured_s: float = MEASURED_S) -> OwnSpeed:
    """Train the run's model from random values and time its steps.

    Raises:
        ConfigError: a run of another kind than `shards = "data"`, or a bad file.
        MachineError: no such device, or the model does not fit it.
    """
    run = load_run_config(run_file)
    if run.run.shards != "data" or run.adapter is not None:
        kind = "an adapter" if run.adapter else f'shards = "{run.run.shards}"'
        raise ConfigError(
            f"--speed {run_file}: a run with {kind}",
            'a run of shards = "data" that trains all of its model',
            "for stages see: potluck cut run.toml" if run.pipeline is not None else "",
        )
    with tempfile.TemporaryDirectory(prefix="potluck-speed-") as folder:
        try:
            trainer = _trainer(run, config, Path(folder))
            tokens_per_s = _timed(trainer, measured_s, time.perf_counter)
        except (MemoryError, RuntimeError) as error:
            raise _failed(run_file, error) from error
        report = trainer.card.report(trainer.micro_batch)
        flops_per_s = tokens_per_s * flops_per_token(run_load(run))
        return OwnSpeed(tokens_per_s, flops_per_s, report.reason, report.mfu(tokens_per_s))


def _failed(run_file: Path, error: Exception) -> MachineError:
    from peer.machine.device import is_out_of_memory
    from peer.training.replica.compiler import one_line

    if is_out_of_memory(error):
        return MachineError(
            f"the memory does not suffice for the model of {run_file}",
            "a device that holds it",
            "name another with --device",
        )
    return MachineError(f"training failed: {one_line(error)}", "steps that can be timed", "see: potluck doctor")


def _timed(trainer: LocalTrainer, measured_s: float, clock: Callable[[], float]) -> float:
    """Tokens/s of steps after the first, which allocates and compiles."""
    trainer.step()
    begin_s, begin, steps = clock(), trainer.counters.tokens_trained, 0
    while steps < _LEAST_STEPS or clock() - begin_s < measured_s:
        trainer.step()
        steps += 1
    return (trainer.counters.tokens_trained - begin) / max(clock() - begin_s, 1e-9)


def _trainer(run: RunConfig, config: PeerConfig, folder: Path) -> LocalTrainer:
    import numpy as np  # with torch, which takes seconds

    from averaging.arithmetic.genesis import genesis_anchor
    from peer.training.local_training import LocalTrainer
    from peer.training.training_plan import TrainingPlan
    from protocol.tensors.model_config import model_schema

    shard, vocab = folder / "shard", run.model.vocab_size
    wide: TokenBytes = 2 if vocab <= 1 << 16 else 4
    num_tokens = max(_SHORT_TOKENS, _SEQUENCES * (run.model.context_tokens + 1))
    np.random.default_rng(1).integers(vocab, size=num_tokens, dtype=np.uint32).astype(f"<u{wide}").tofile(shard)
    trainer = LocalTrainer(
        TrainingPlan(
            model=run.model,
            inner=run.inner,
            seed=run.run.seed,
            peer="speed",
            total_tokens=run.run.total_tokens,
            train_shards=(shard,),
            heldout_shards=(shard,),
            token_bytes=wide,
            device=config.device,
            num_threads=config.num_threads,
            wishes=config.wishes,
        )
    )
    trainer.load(genesis_anchor(model_schema(run.model), run.run.seed), 0)
    trainer.find_micro_batch()
    trainer.compile_layers()
    return trainer
