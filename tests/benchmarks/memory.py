"""`python -m tests.benchmarks.memory --json FILE [--quick]`: what taking part in a run costs in memory and disk writes.

Two real peers, each a daemon and its training process, train one model on this machine and hold rounds. Then the host writes a
checkpoint, the owners pause both peers so that a long gap between two rounds can be looked at, and a third peer joins. Another process
trains the same model at the same micro-batch in a plain loop with AdamW, nothing else.

Most rows are bytes a value: the growth from one size of the model to another, without interpreters and libraries. Anonymous memory,
shared memory and mapped files are told apart (memory_readings.py). Resident peaks are the kernel's own, of peers from their second
commit on; kinds of pages are looked at forty times a second.

Disk writes of a commit are judged over as many commits as one state comes in, with a small model and short steps; `--writes`
does only that. `--joining` looks at a newcomer alone. `--keep FOLDER` keeps what was seen of each run, and a later call with the same
settings goes on with the runs that are missing. `--large` holds three rounds of one large model instead, in as little memory as
a peer's settings allow.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch.nn import functional

from averaging.models.llama.config import LlamaConfig
from peer.machine.memory import own_peak_bytes
from peer.models.decoder import Decoder
from peer.training.optimizers.adamw import AdamW, ParameterGroup
from protocol.run.training_sections import InnerSection
from tests.benchmarks.memory_large import LARGE_VALUES, large_rows
from tests.benchmarks.memory_rows import (
    COMMITS_A_GENERATION,
    FEEDBACK_MORE,
    Read,
    Result,
    Slope,
    beside_base,
    commit_write_rows,
    daemons,
    joining_rows,
    kinds_rows,
    process_rows,
    promise_rows,
    slope,
    streaming,
    value_row,
    whole_model_rows,
)
from tests.benchmarks.memory_runs import (
    BATCH_TOKENS,
    CONTEXT_TOKENS,
    LIMIT_S,
    NUM_PEERS,
    Run,
    Seen,
    observe,
    observe_joining,
)
from tests.benchmarks.memory_seen import seen_once
from tests.benchmarks.processes import Children, open_children
from tests.benchmarks.results import Row, machine, print_rows, write_rows

PLAIN_STEPS: Final = 3
FRAGMENTS: Final = 4
SHORT_TOKENS: Final = 8
SHORT_STEPS: Final = 4
"""Of runs that are watched for their disk writes alone, which do not depend on the text."""

JOINED_COMMITS: Final = 4
"""A newcomer replays them, and the first ones."""

LONG_LIMIT_S: Final = 1800.0
"""For a round at 101M values on a busy machine."""

QUICK_AT_ONCE: Final = 3
"""Runs side by side: memory does not depend on how fast they go."""

TINY: Final = LlamaConfig(
    dim=256, num_layers=4, num_heads=4, num_kv_heads=2, ffn_dim=704, context_tokens=CONTEXT_TOKENS
)
SMALL: Final = LlamaConfig(
    dim=512, num_layers=8, num_heads=8, num_kv_heads=4, ffn_dim=1408, context_tokens=CONTEXT_TOKENS
)
LARGE: Final = LlamaConfig(
    dim=1024, num_layers=8, num_heads=16, num_kv_heads=8, ffn_dim=3072, context_tokens=CONTEXT_TOKENS
)
"""3.0M, 23.7M and 101M values."""


# --- plain training -----------------------------------------------------------------------------------------------------------


def plain_peak_bytes(model: LlamaConfig) -> int:
    """Peak resident memory of this process after some steps of AdamW."""
    torch.set_num_threads(1)
    decoder = Decoder(model)
    matrices = [p for p in decoder.parameters() if p.dim() >= 2]
    vectors = [p for p in decoder.parameters() if p.dim() < 2]
    optimizer = AdamW((ParameterGroup(matrices, 0.1), ParameterGroup(vectors, 0.0)), beta1=0.9, beta2=0.95)
    generator = torch.Generator().manual_seed(1)
    shape = (BATCH_TOKENS // CONTEXT_TOKENS, model.context_tokens + 1)
    for _ in range(PLAIN_STEPS):
        tokens_BT = torch.randint(0, 256, shape, generator=generator)
        logits_BTV = decoder(tokens_BT[:, :-1])
        loss = functional.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT[:, 1:].flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step(0.001)
        optimizer.zero_grad()
    return own_peak_bytes()


def _plain(model: LlamaConfig) -> int:
    command = [sys.executable, "-m", "tests.benchmarks.memory", "--json", "-", "--plain", model.model_dump_json()]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# --- runs ---------------------------------------------------------------------------------------------------------------------


def writing() -> list[Run]:
    """Runs whose windows have as many states as the average, so that their disk writes can be judged."""
    model = TINY.model_copy(update={"context_tokens": SHORT_TOKENS})
    inner = InnerSection(learning_rate=0.001, batch_tokens=2 * SHORT_TOKENS)
    run = partial(Run, model=model, commits=COMMITS_A_GENERATION, steps=SHORT_STEPS, inner=inner)
    return [run("int8"), run(f"int8 in {FRAGMENTS} fragments", fragments=FRAGMENTS), run("topk", codec="topk")]


def inner_of(model: LlamaConfig) -> InnerSection:
    """As many sequences of a step as in `Run`."""
    sequences = BATCH_TOKENS // CONTEXT_TOKENS
    return InnerSection(learning_rate=0.001, batch_tokens=sequences * model.context_tokens)


def variants(model: LlamaConfig, commits: int, limit_s: float) -> list[Run]:
    """The runs whose peaks are compared with those of int8. In fragments each commit of the embeddings comes with one of each."""
    run = partial(Run, model=model, limit_s=limit_s, inner=inner_of(model))
    return [
        run("topk", codec="topk", commits=commits),
        run("topk without feedback", codec="topk", feedback=0.0, commits=commits),
        run(f"int8 in {FRAGMENTS} fragments", fragments=FRAGMENTS, first_commits=1, commits=2),
    ]


@dataclass(frozen=True, slots=True)
class Place:
    """A folder for runs, `at_once` of them side by side. All that is seen of them is kept in `keep`, if given."""

    folder: Path
    at_once: int
    keep: Path | None = None

    def under(self, name: str) -> Place:
        """The same in another folder."""
        return replace(self, folder=self.folder / name)


def measure(place: Place, runs: Sequence[Run], look: Callable[[Children, Path, Run], Seen] = observe) -> list[Result]:
    """Each of the runs, some of them at once."""
    with ThreadPoolExecutor(place.at_once) as pool, ExitStack() as stack:
        children = [stack.enter_context(open_children(place.folder / f"logs-{number}")) for number in range(len(runs))]
        folders = [place.folder / f"run-{number}" for number in range(len(runs))]

        def watched(children: Children, folder: Path, run: Run) -> Seen:
            looking = partial(look, children, folder, run)
            return looking() if place.keep is None else seen_once(place.keep, run, looking)

        return list(map(Result, runs, pool.map(watched, children, folders, runs)))


def disk_write_rows(place: Place) -> list[Row]:
    """Disk writes of a commit, and the dry run's promise of them."""
    settings: dict[str, object] = {"peers": NUM_PEERS, "commits": COMMITS_A_GENERATION, "machine": machine()}
    found = measure(place, writing())
    return [row for result in found for row in commit_write_rows(result, settings)]


def newcomer_rows(place: Place) -> list[Row]:
    """A newcomer's daemon alone, at 3M and 24M values."""
    settings: dict[str, object] = {"peers": NUM_PEERS, "machine": machine()}
    runs = [Run("int8", model, commits=JOINED_COMMITS, steps=SHORT_STEPS) for model in (TINY, SMALL)]
    small, large = measure(place, runs, observe_joining)
    return joining_rows(small, large, {"from": small.num_values, "to": large.num_values, **settings})


def table_rows(place: Place, sizes: tuple[LlamaConfig, LlamaConfig], commits: int, limit_s: float) -> list[Row]:
    """All rows of peers and host, at two sizes."""
    plain = (_plain(sizes[0]), _plain(sizes[1]))
    run = partial(Run, "int8", commits=commits, has_all=True, limit_s=limit_s)
    whole = [run(model=model, inner=inner_of(model)) for model in reversed(sizes)]
    others = variants(sizes[1], min(commits, 6), limit_s)
    large, small, *found = measure(place, [*whole, *others])
    settings: dict[str, object] = {
        "from": small.num_values,
        "to": large.num_values,
        "batch_tokens": inner_of(sizes[1]).batch_tokens,
        "peers": NUM_PEERS,
        "commits": commits,
        "machine": machine(),
    }
    rows = whole_model_rows(small, large, plain, settings)
    rows += _variant_rows(small, large, found, settings)
    for result in (large, *found):
        rows += [
            *promise_rows(result, settings),
            *process_rows(result, plain[1], settings),
        ]
    return [*rows, *disk_write_rows(place.under("writes"))]


def _variant_rows(small: Result, large: Result, found: Sequence[Result], settings: dict[str, object]) -> list[Row]:
    """Fragments and feedback, at the larger size, over the bytes that int8 takes without any value."""
    rows, resident = [], list[float]()
    for result, figures in zip(found, ({}, {}, {"resident": streaming(FRAGMENTS)}), strict=True):
        grown = partial(_beside_base, small, large, result)
        rows += kinds_rows(
            f"daemon, {result.run.name}, peak", lambda seen: daemons(seen.rounds), grown, figures, settings
        )
        resident.append(max(grown(lambda seen: [peer.daemon.resident for peer in seen.rounds]).values))
    rows.append(
        value_row("daemon, topk: feedback more than without", [resident[0] - resident[1]], FEEDBACK_MORE, settings)
    )
    return rows


def _beside_base(small: Result, large: Result, result: Result, read: Read) -> Slope:
    return beside_base(result, slope(small, large, read).base, read)


def _at_large(row: Row) -> Row:
    """Tells a row from that of the quick sizes."""
    return row if "values" in row.metric else replace(row, metric=f"24M to 101M values: {row.metric}")


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.memory", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument(
        "--quick", action="store_true", help="3M and 24M values instead of 24M and 101M, several runs at once"
    )
    parser.add_argument("--large", action="store_true", help="three rounds of one large model instead")
    parser.add_argument("--joining", action="store_true", help="a newcomer alone")
    parser.add_argument("--writes", action="store_true", help="disk writes of commits alone")
    parser.add_argument("--large-values", type=int, default=LARGE_VALUES, help="values of that model, about")
    parser.add_argument("--keep", type=Path, help="where to keep what was seen of each run, for a later call")
    parser.add_argument("--commits", type=int, default=16, help="to watch of each run, without --quick")
    parser.add_argument("--short", action="store_true", help="short sequences and so short steps, without --quick")
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.plain:
        print(plain_peak_bytes(LlamaConfig.model_validate_json(options.plain)))
        return 0
    with tempfile.TemporaryDirectory(prefix="potluck-memory-") as folder:
        place = Place(Path(folder), QUICK_AT_ONCE if options.quick else 1, options.keep)
        if options.large:
            rows = large_rows(place.folder, options.large_values)
        elif options.joining:
            rows = newcomer_rows(place)
        elif options.writes:
            rows = disk_write_rows(place)
        elif options.quick:
            rows = table_rows(place, (TINY, SMALL), 6, LIMIT_S)
        else:
            tokens = SHORT_TOKENS if options.short else CONTEXT_TOKENS
            small, large = (model.model_copy(update={"context_tokens": tokens}) for model in (SMALL, LARGE))
            rows = [_at_large(row) for row in table_rows(place, (small, large), options.commits, LONG_LIMIT_S)]
    write_rows(rows, options.json)
    print_rows(rows, "memory: bytes a value")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
