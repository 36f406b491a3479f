"""`python -m tests.benchmarks.codecs --json FILE [--quick]`: what each codec makes of real deltas and of noise, and how fast one core
does it.

The real deltas are of the product's own decoder: genesis, steps to get past the first ones, an anchor, then H local steps of AdamW
on Python's standard library. Speeds are processor seconds of this process, one thread, in chunks as they travel, as many at once as
rounds take (averaging/arithmetic/batched_codec.py); each trial measures all codecs in turn, so that all see the same machine, and
once more without the compiled library. Speed is told in GB (1e9 bytes) of the float32 values.

Results of the sparse mode are means of "topk" contributions: of four members' real deltas, and of noise, on which
members never agree, of 8 and 16. Those codecs are timed on the means of as many members as they have room for.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import torch

from averaging.arithmetic import batched_codec as chunk_runs
from averaging.arithmetic.batched_codec import decode_run, encode_run, run_chunks
from averaging.arithmetic.genesis import genesis_anchor
from averaging.arithmetic.weighted_mean import WeightedSum
from averaging.codecs import Codec, codec_by_name, codec_names, sparse
from averaging.codecs.compiled import BLOCKS
from averaging.codecs.sparse import RESULTS, TOPK, SparseCodec
from averaging.data.sources.corpus import python_stdlib_documents
from averaging.models.llama.config import LlamaConfig
from peer.training.local_training import LocalTrainer
from peer.training.training_plan import TrainingPlan
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.benchmarks.results import Row, machine, print_rows, write_rows

BENCH: Final = "codecs"
MODEL: Final = LlamaConfig(dim=128, num_layers=4, num_heads=4, num_kv_heads=2, ffn_dim=352, context_tokens=128)
BATCH_TOKENS: Final = 2048
TEXT_BYTES: Final = 4 << 20
NUM_NOISE: Final = 1 << 22
NUM_SPARSE: Final = 1 << 20
NUM_TIMED: Final = 1 << 22
"""Values a trial of speed: 16 MiB, more than the cores' own caches."""

NUM_MEMBERS: Final = 4
"""The model whose real deltas are averaged."""

RESULT_CODECS: Final = ("int8", "int4", "e3m0", *(codec.name for codec in RESULTS))

WITHOUT: Final = " without the library"

LEAST_ENCODE: Final = {"int8": 1.0, "int4": 1.0, "topk": 0.6}
MOST_BITS_A_KEPT_VALUE: Final = {"topk": 10.2}
LEAST_DECODE: Final = {"int8": 2.0, "int4": 2.0}


@dataclass
class Speeds:
    """GB of float32 per processor second, a number a trial."""

    encode: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)


def packed_text(folder: Path) -> Path:
    """A shard of Python's standard library, a token a byte."""
    text = b"".join(document.path.read_bytes() for document in islice(python_stdlib_documents(), 400))[:TEXT_BYTES]
    shard = folder / "shard"
    np.frombuffer(text, dtype=np.uint8).astype("<u2").tofile(shard)
    return shard


def real_deltas(folder: Path, warm_steps: int, local_steps: int) -> list[torch.Tensor]:
    """(N,) anchor - theta of some members after so many steps each from an anchor that has left the start behind."""
    shard = packed_text(folder)
    anchor_N, deltas = genesis_anchor(model_schema(MODEL), 1), []
    for member in range(NUM_MEMBERS):
        trainer = LocalTrainer(_plan(shard, f"benchmark {member}"))
        trainer.load(anchor_N, 0)
        for _ in range(0 if member else warm_steps):
            trainer.step()
        anchor_N = anchor_N if member else trainer.theta()
        for _ in range(local_steps):
            trainer.step()
        deltas.append(anchor_N - trainer.theta())
    return deltas


def _plan(shard: Path, peer: str) -> TrainingPlan:
    return TrainingPlan(
        model=MODEL,
        inner=InnerSection(learning_rate=0.002, batch_tokens=BATCH_TOKENS),
        seed=1,
        peer=peer,
        total_tokens=1 << 40,
        train_shards=(shard,),
        heldout_shards=(shard,),
        device="cpu",
        num_threads=1,
        micro_batch=BATCH_TOKENS // MODEL.context_tokens,
    )


def noise(num: int, seed: int) -> torch.Tensor:
    """(num,) normal."""
    return torch.randn(num, generator=torch.Generator().manual_seed(seed))


def sparse_mean(deltas: Sequence[torch.Tensor], chunk: int) -> torch.Tensor:
    """(n,) what a reducer makes of "topk" contributions of equal weight."""
    total = WeightedSum(len(deltas[0]))
    for delta_n in deltas:
        parts_n = torch.split(delta_n, chunk)
        total.add(1, torch.cat([TOPK.decode(TOPK.encode(part_n), len(part_n)) for part_n in parts_n]))
    return total.mean()


def error_rows(codec: Codec, values: dict[str, torch.Tensor], chunk: int, settings: dict[str, object]) -> list[Row]:
    """Bits a value and relative error, by kind of values; and that the same values give the same bytes and these the same values."""
    rows = []
    for kind, values_n in values.items():
        parts_n = torch.split(values_n, chunk)
        encoded = [codec.encode(part_n) for part_n in parts_n]
        decoded_n = torch.cat([codec.decode(data, len(part)) for data, part in zip(encoded, parts_n, strict=True)])
        again_n = torch.cat([codec.decode(data, len(part)) for data, part in zip(encoded, parts_n, strict=True)])
        same = encoded == [codec.encode(part_n) for part_n in parts_n] and torch.equal(decoded_n, again_n)
        bits = 8 * sum(map(len, encoded)) / len(values_n)
        error = float((decoded_n - values_n).norm() / values_n.norm())
        name = f"{codec.name}, {kind}"
        rows += [
            Row(BENCH, f"{name}: size", round(bits, 4), "bit/value", 32.0, round(bits / 32, 4), trials=1, settings=settings),
            Row(BENCH, f"{name}: relative error", round(error, 5), "", trials=1, settings=settings),
            *kept_rows(codec, name, bits, values_n, decoded_n, chunk, settings),
            Row(BENCH, f"{name}: same bytes", float(same), "share", target="= 1", met=same, trials=1, settings=settings),
        ]  # fmt: skip
    return rows


def kept_rows(
    codec: Codec,
    name: str,
    bits: float,
    values_n: torch.Tensor,
    decoded_n: torch.Tensor,
    chunk: int,
    settings: dict[str, object],
) -> list[Row]:
    """Of a sparse codec: bits a value that may be written, and the error of those that were."""
    if not isinstance(codec, SparseCodec):
        return []
    kept = bits * len(values_n) / sum(codec.num_places(len(part_n)) for part_n in torch.split(values_n, chunk))
    most = MOST_BITS_A_KEPT_VALUE.get(codec.name)
    reported = decoded_n != 0
    error = float((decoded_n[reported] - values_n[reported]).norm() / values_n[reported].norm())
    return [
        Row(
            BENCH, f"{name}: kept value", round(kept, 4), "bit", target="" if most is None else f"<= {most:g}",
            met=None if most is None else kept <= most, trials=1, settings=settings,
        ),
        Row(BENCH, f"{name}: relative error of kept values", round(error, 5), "", trials=1, settings=settings),
    ]  # fmt: skip


def timed_values(codec: Codec, chunk: int) -> tuple[torch.Tensor, ...]:
    """Noise, in runs of chunks; for a result of sparse contributions the mean of some of noise."""
    run = chunk * run_chunks(chunk)
    if codec not in RESULTS or not isinstance(codec, SparseCodec):
        return torch.split(noise(NUM_TIMED, 2), run)
    num_members = TOPK.numbers.stride // codec.numbers.stride
    return torch.split(sparse_mean([noise(NUM_TIMED, 10 + member) for member in range(num_members)], chunk), run)


@contextmanager
def not_compiled() -> Iterator[None]:
    """Everything by torch and NumPy."""
    with ExitStack() as stack:
        for module in (chunk_runs, sparse):
            stack.enter_context(patch.object(module, "BLOCKS", None))
        yield


def measure_speeds(codecs: Sequence[Codec], num_trials: int, chunk: int) -> dict[str, Speeds]:
    """All codecs in turn, again and again."""
    parts_n = {codec.name: timed_values(codec, chunk) for codec in codecs}
    encoded = {codec.name: [encode_run(codec, part_n, chunk) for part_n in parts_n[codec.name]] for codec in codecs}
    ways: dict[str, Callable[[], AbstractContextManager[None]]] = {"": nullcontext}
    if BLOCKS is not None:
        ways[WITHOUT] = not_compiled
    speeds = {codec.name + way: Speeds() for codec in codecs for way in ways}
    for _ in range(num_trials):
        for (way, opened), codec in itertools.product(ways.items(), codecs):
            with opened():
                run, speed = len(parts_n[codec.name][0]), speeds[codec.name + way]
                speed.encode.append(_speed(partial(encode_run, codec, chunk_elements=chunk), parts_n[codec.name]))
                decode = partial(_decode_run, codec, chunk, run)
                speed.decode.append(_speed(decode, encoded[codec.name]))
    return speeds


def _decode_run(codec: Codec, chunk: int, num_elements: int, chunks: Sequence[bytes | memoryview]) -> torch.Tensor:
    return decode_run(codec, chunks, chunk, num_elements)


def _speed(work: Callable[[Any], object], parts: Sequence[object]) -> float:
    """Nothing of a chunk is kept while the next one is worked on, as where it is sent or summed."""
    begin_s = time.process_time()
    for part in parts:
        work(part)
    return 4 * NUM_TIMED / (time.process_time() - begin_s) / 1e9


def speed_row(metric: str, values: Sequence[float], least: float | None, settings: dict[str, object]) -> Row:
    """The more the better; the target is the median's: single trials are the machine's."""
    median = statistics.median(values)
    return Row(
        BENCH,
        metric,
        round(median, 3),
        "GB/s",
        target="" if least is None else f">= {least:g}",
        met=None if least is None else median >= least,
        trials=len(values),
        spread={"best": round(max(values), 3), "worst": round(min(values), 3)},
        settings=settings,
    )


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.codecs", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="fewer steps and trials")
    parser.add_argument("--chunk-elements", type=int, default=1 << 16, help="values a chunk")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    num_trials, warm_steps, local_steps = (5, 20, 10) if options.quick else (15, 300, 100)
    settings: dict[str, object] = {"chunk": options.chunk_elements, "local_steps": local_steps, "machine": machine()}
    codecs = [codec_by_name(name) for name in codec_names()]
    speeds = measure_speeds(codecs, num_trials, options.chunk_elements)
    with tempfile.TemporaryDirectory(prefix="potluck-codecs-") as folder:
        deltas = real_deltas(Path(folder), warm_steps, local_steps)
    chunk = options.chunk_elements
    values = {"real delta": deltas[0], "noise": noise(NUM_NOISE, 3)}
    means = {f"mean of {NUM_MEMBERS} real": sparse_mean(deltas, chunk)}
    for num_members in (8, 16):
        made = [noise(NUM_SPARSE, 20 + member) for member in range(num_members)]
        means[f"mean of {num_members} noise"] = sparse_mean(made, chunk)
    rows = []
    for codec in codecs:
        name, measured = codec.name, speeds[codec.name]
        rows += error_rows(codec, values if codec not in RESULTS else {}, chunk, settings)
        rows += error_rows(codec, means if name in RESULT_CODECS else {}, chunk, settings)
        rows.append(speed_row(f"{name}: encode", measured.encode, LEAST_ENCODE.get(name), settings))
        rows.append(speed_row(f"{name}: decode", measured.decode, LEAST_DECODE.get(name), settings))
        plain = speeds.get(name + WITHOUT)
        if plain is not None:
            rows.append(speed_row(f"{name}: encode{WITHOUT}", plain.encode, None, settings))
            rows.append(speed_row(f"{name}: decode{WITHOUT}", plain.decode, None, settings))
    write_rows(rows, options.json)
    print_rows(rows, "codecs, one core")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
