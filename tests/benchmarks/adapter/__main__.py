"""`python -m tests.benchmarks.adapter --json FILE [--folder FOLDER] [--base FOLDER | --quick]`: an adapter against full fine-tuning.

Peers fine-tune a base on chats, one after another in this process, by the product's own trainer, codecs, sums and outer step: once all
of its values, and once an adapter over the base in bfloat16. The chats ask for functions of Python's library, and the answers are
their docstrings. `--base` names a checkpoint in the Hugging Face layout: then the chats are packed as a host does it, with the
checkpoint's tokenizer and template, and only answers count. Without it a base is made of the library's code, and tokens are bytes.

Both sides have the same tokens, and each takes the best of its learning rates. The fall is the base's held-out loss less that at the
end. Bytes are those of contributions and results as the codec writes them, in a round of these peers, and by the formula for a base of
30 million values. The folder keeps finished trainings, one a line: what is there is not trained again. Each start ends after the
training in which `--piece-s` is over. `--quick` takes a small base and few rounds. Exit code 0: every target is met. 1: one is missed.
2: there is more to train: start it again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import torch

from averaging.models.llama.config import LlamaConfig
from protocol.run.traffic import update_bytes
from protocol.tensors.adapter_schema import AdapterConfig, adapter_schema
from protocol.tensors.model_config import model_schema
from protocol.tensors.round_defaults import default_chunk_elements
from tests.benchmarks.adapter.bases import given_base, made_base
from tests.benchmarks.adapter.fine_tuning import CODEC, NUM_PEERS, Course, Trial, World, fine_tune
from tests.benchmarks.convergence import Runs
from tests.benchmarks.results import Row, machine, print_rows, write_rows

BENCH: Final = "adapter"
SMALL: Final = LlamaConfig(dim=64, num_layers=2, num_heads=2, num_kv_heads=2, ffn_dim=176, context_tokens=64)
LARGE: Final = LlamaConfig(dim=512, num_layers=10, num_heads=8, num_kv_heads=4, ffn_dim=1408, context_tokens=256)
"""30 million values."""

LARGE_ADAPTER: Final = AdapterConfig(rank=4, alpha=8.0, targets=("q_proj", "v_proj"))
GIVEN_CONTEXT_TOKENS: Final = 128
LEAST_SHARE: Final = 0.9
MOST_BYTES_SHARE: Final = 1 / 200
LEAST_VALUES: Final = 25_000_000
"""Of a base whose rounds have this aim. An adapter over a smaller one is a larger part of it."""


@dataclass(frozen=True)
class Side:
    """One side of the comparison: full fine-tuning or an adapter, at each of its learning rates."""

    adapter: AdapterConfig | None
    rates: tuple[float, ...]


@dataclass(frozen=True)
class Plan:
    """All trainings of the comparison."""

    world: World
    course: Course
    full: Side
    adapted: Side

    def trials(self, side: Side) -> list[Trial]:
        """One for each rate."""
        return [Trial(self.world, self.course, side.adapter, rate) for rate in side.rates]

    @property
    def before(self) -> Trial:
        """Measures the base."""
        return Trial(self.world, replace(self.course, num_rounds=0, local_steps=0), None, rate=1.0)

    @property
    def all_trials(self) -> list[Trial]:
        """The base first, then the sides by turns."""
        sides = [self.trials(self.full), self.trials(self.adapted)]
        longest = max(map(len, sides))
        return [self.before, *(side[number] for number in range(longest) for side in sides if number < len(side))]


def train(plan: Plan, runs: Runs, piece_s: float) -> bool:
    """Train until all is done or the piece is over; whether all is done."""
    stops_at_s = time.monotonic() + piece_s
    for trial in plan.all_trials:
        if runs.loss(trial) is not None:
            continue
        if time.monotonic() >= stops_at_s:
            return False
        outcome = fine_tune(trial)
        runs.add(trial, asdict(outcome))
        print(f"{trial.key}: {outcome.loss:.4f} nats/byte, {outcome.cpu_s:.0f} CPU s", flush=True)
    return True


def bytes_by_formula(model: LlamaConfig, adapter: AdapterConfig) -> tuple[int, int]:
    """Bytes of one encoded contribution, of the adapter and of the whole model."""
    sizes = adapter_schema(model, adapter).num_elements, model_schema(model).num_elements
    found = [update_bytes(CODEC, size, default_chunk_elements(size, NUM_PEERS, None)) for size in sizes]
    return found[0], found[1]


def _losses(plan: Plan, runs: Runs, side: Side) -> Mapping[float, float]:
    """By rate, of those that are trained."""
    return {trial.rate: loss for trial in plan.trials(side) if (loss := runs.loss(trial)) is not None}


def _round_bytes(plan: Plan, runs: Runs, side: Side) -> int:
    """The same for each rate."""
    trained = next(trial for trial in plan.trials(side) if runs.loss(trial) is not None)
    return int(str(runs.figure(trained, "round_bytes")))


def rows_of(plan: Plan, runs: Runs) -> list[Row]:
    """The table; empty before the base and both sides are trained."""
    before, full, adapted = runs.loss(plan.before), *(_losses(plan, runs, side) for side in (plan.full, plan.adapted))
    if before is None or not full or not adapted:
        return []
    world, config = plan.world, plan.adapted.adapter or LARGE_ADAPTER
    settings: dict[str, object] = {**asdict(plan.course), "base": world.name, "machine": machine()}
    settings |= {"model": world.model.model_dump(), "adapter": config.model_dump(), "before": before}
    settings |= {"full_losses_by_rate": full, "adapter_losses_by_rate": adapted}
    falls = before - min(full.values()), before - min(adapted.values())
    share, (own, whole) = falls[1] / falls[0], bytes_by_formula(LARGE, LARGE_ADAPTER)
    sent, of_all = _round_bytes(plan, runs, plan.adapted), _round_bytes(plan, runs, plan.full)
    name, has_aim = world.name, model_schema(world.model).num_elements >= LEAST_VALUES
    most = f"<= {MOST_BYTES_SHARE:g} of the whole"
    return [
        Row(BENCH, f"{name}: full fine-tuning: fall of the held-out loss", round(falls[0], 4), "nats/byte",
            trials=1, settings=settings),
        Row(BENCH, f"{name}: adapter: fall of the held-out loss", round(falls[1], 4), "nats/byte", round(falls[0], 4),
            round(share, 3), f">= {LEAST_SHARE:g} of full", share >= LEAST_SHARE, 1, settings=settings),
        Row(BENCH, f"{name}: adapter: bytes of a peer in a round, counted", sent, "B", of_all, round(sent / of_all, 5),
            most if has_aim else "", sent / of_all <= MOST_BYTES_SHARE if has_aim else None, 1, settings=settings),
        Row(BENCH, "adapter over 30M values: bytes of a contribution, by formula", own, "B", whole, round(own / whole, 5),
            most, own / whole <= MOST_BYTES_SHARE, 1,
            settings={"model": LARGE.model_dump(), "adapter": LARGE_ADAPTER.model_dump(), "codec": CODEC}),
    ]  # fmt: skip


def _rates(text: str) -> tuple[float, ...]:
    return tuple(float(each) for each in text.split(","))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.adapter", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--folder", type=Path, help="where trainings are kept; a temporary one if not given")
    parser.add_argument(
        "--base", type=Path, help="a checkpoint in the Hugging Face layout, with its tokenizer and template"
    )
    parser.add_argument("--quick", action="store_true", help="a small base, a short training")
    parser.add_argument("--base-steps", type=int, default=0, help="steps by which a base is made")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--local-steps", type=int, default=0)
    parser.add_argument("--batch-tokens", type=int, default=0)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--full-rates", type=_rates, default=(), help="by commas")
    parser.add_argument("--adapter-rates", type=_rates, default=(), help="by commas")
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--piece-s", type=float, default=float("inf"))
    return parser.parse_args(arguments)


def _defaults(options: argparse.Namespace, folder: Path) -> Plan:
    if options.base is not None:
        world = given_base(options.base, GIVEN_CONTEXT_TOKENS, folder)
        adapted = Side(AdapterConfig(rank=2, alpha=16.0), (1.5e-3, 5e-3, 5e-4))
        return Plan(world, Course(2, 16, 256), Side(None, (1e-4, 3e-4, 3e-5)), adapted)
    rates = Side(None, (0.001, 0.003)), (0.01, 0.03)
    if options.quick:
        world = made_base(SMALL, options.base_steps or 300, folder)
        return Plan(world, Course(5, 20, 1024), rates[0], Side(AdapterConfig(rank=8, alpha=16.0), rates[1]))
    world = made_base(LARGE, options.base_steps or 2000, folder)
    return Plan(world, Course(20, 20, 1024), rates[0], Side(LARGE_ADAPTER, rates[1]))


def _plan(options: argparse.Namespace, folder: Path) -> Plan:
    """The usual one, and what the options change in it."""
    plan = _defaults(options, folder)
    course = Course(
        options.rounds or plan.course.num_rounds,
        options.local_steps or plan.course.local_steps,
        options.batch_tokens or plan.course.batch_tokens,
    )
    adapter = plan.adapted.adapter
    if options.rank and adapter is not None:
        adapter = adapter.model_copy(update={"rank": options.rank})
    full = Side(None, options.full_rates or plan.full.rates)
    return Plan(plan.world, course, full, Side(adapter, options.adapter_rates or plan.adapted.rates))


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met, 1 when one was missed, 2 when there is more to train."""
    options = _options(arguments)
    torch.set_num_threads(options.threads)
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="potluck-adapter-")))
        folder.mkdir(parents=True, exist_ok=True)
        plan, runs = _plan(options, folder), Runs(folder / "runs.jsonl")
        is_done = train(plan, runs, options.piece_s)
        rows = rows_of(plan, runs)
    write_rows(rows, options.json)
    print_rows(rows, "adapters")
    if not is_done:
        return 2
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
