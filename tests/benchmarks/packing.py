"""How long a host packs text, beside one core that encodes the same text once with the same tokenizer.

`python -m tests.benchmarks.packing --json out.jsonl --megabytes 100`. The text is Python's library in another order, in JSON lines.
The host reads, encodes, decodes again, hashes and writes it. Time is that of processors, of all processes of the host.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAYON_NUM_THREADS", "1")

from averaging.data.sources.corpus import python_stdlib_documents
from averaging.data.sources.jsonl import read_jsonl
from averaging.data.tokenizer import Tokenizer
from averaging.data.vocabulary import FileTokenizer, train_bpe
from averaging.host.progress import no_progress
from coordinator.run.run_files import open_run
from protocol.identity.identity import Identity
from tests.benchmarks.results import Row, machine, print_rows, write_rows

MOST_RATIO: Final = 2.0
"""Of the host's time to that of one core's tokenizer."""

ROW_BYTES: Final = 2000
VOCABULARY: Final = 8192
HELDOUT_EVERY: Final = 50
SAMPLE_BYTES: Final = 1 << 24
"""The vocabulary is trained on so much, and one core encodes so much; more would only take longer."""

CHAT_TEMPLATE: Final = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

RUN_TOML: Final = """
[run]
name = "packing"
total_tokens = 10_000_000
[model]
vocab_size = {vocabulary}
dim = 64
num_layers = 1
num_heads = 1
num_kv_heads = 1
ffn_dim = 64
context_tokens = 256
[data]
source = "jsonl"
glob = "rows.jsonl"
tokenizer = "{tokenizer}"
heldout_every = {heldout_every}
{more}
[inner]
learning_rate = 0.001
batch_tokens = 4096
[round]
target_tokens = 1_000_000
longest_interval_s = 600.0
"""


def rows(num_bytes: int, seed: int = 1) -> Iterator[str]:
    """Texts of about `ROW_BYTES` each, so many bytes of them together."""
    parts = []
    for document in python_stdlib_documents(HELDOUT_EVERY):
        text = document.path.read_bytes().decode(errors="replace")
        parts += [text[begin : begin + ROW_BYTES // 4] for begin in range(0, len(text), ROW_BYTES // 4)]
    drawn, left = random.Random(seed), num_bytes
    while left > 0:
        row = "".join(drawn.choices(parts, k=4))
        left -= len(row)
        yield row


def write_rows_file(path: Path, num_bytes: int, *, is_chat: bool) -> int:
    """The rows as JSON lines. Returns the bytes of their text."""
    written = 0
    with path.open("w", encoding="utf8") as file:
        for row in rows(num_bytes):
            half = len(row) // 2
            turns = [{"role": "user", "content": row[:half]}, {"role": "assistant", "content": row[half:]}]
            file.write(json.dumps({"messages": turns} if is_chat else {"text": row}) + "\n")
            written += len(row.encode())
    return written


def cpu_s() -> float:
    """Processor time of this process and of those that it started and that ended."""
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Processor and wall seconds of some work."""
    before_s, begin_s = cpu_s(), time.perf_counter()
    work()
    return cpu_s() - before_s, time.perf_counter() - begin_s


def tokenizer_only(folder: Path, tokenizer: Tokenizer) -> Callable[[], None]:
    """Encodes each row's text once, and nothing more."""
    texts = [text.data for text in read_jsonl([folder / "plain.jsonl"], "text", HELDOUT_EVERY)]

    def work() -> None:
        for text in texts:
            tokenizer.encode(text)

    return work


def measure(num_bytes: int, *, is_chat: bool) -> list[Row]:
    """Pack so much text, and encode the same text once."""
    with tempfile.TemporaryDirectory(prefix="potluck-packing-") as name:
        folder = Path(name)
        text_bytes = write_rows_file(folder / "rows.jsonl", num_bytes, is_chat=is_chat)
        sample_bytes = min(num_bytes, SAMPLE_BYTES)
        write_rows_file(folder / "plain.jsonl", sample_bytes, is_chat=False)
        trained = train_bpe(read_jsonl([folder / "plain.jsonl"], "text", HELDOUT_EVERY), VOCABULARY)
        (folder / "own.json").write_bytes(trained.file or b"")
        (folder / "t.jinja").write_text(CHAT_TEMPLATE)
        tokenizer = FileTokenizer(trained.file or b"", "own.json", "<|end|>")
        encode_s, _ = timed(tokenizer_only(folder, tokenizer))
        encode_s *= num_bytes / sample_bytes  # the same kind of text
        more = 'format = "chat"\nchat_template = "t.jinja"\nisolate = true' if is_chat else ""
        values = {"vocabulary": VOCABULARY, "tokenizer": "own.json", "heldout_every": HELDOUT_EVERY, "more": more}
        (folder / "run.toml").write_text(RUN_TOML.format(**values))

        def pack() -> None:
            with no_progress():
                open_run(folder / "run.toml", folder / "state", Identity(b"h" * 32), now_unix_s=time.time())

        pack_s, wall_s = timed(pack)
    kind = "chats" if is_chat else "text"
    settings: dict[str, object] = {"bytes": text_bytes, "vocabulary": VOCABULARY, "machine": machine()}
    ratio = pack_s / encode_s
    return [
        Row(
            "packing",
            f"{kind}: processor time beside one core's tokenizer",
            round(pack_s, 2),
            "s",
            round(encode_s, 2),
            round(ratio, 3),
            f"ratio <= {MOST_RATIO:g}",
            ratio <= MOST_RATIO,
            1,
            {"best": round(pack_s, 2), "worst": round(pack_s, 2)},
            settings,
        ),
        Row("packing", f"{kind}: wall time", round(wall_s, 2), "s", trials=1, settings=settings),
    ]


def main(arguments: Sequence[str]) -> int:
    """0 when the target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.packing", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--megabytes", type=int, default=100, help="millions of bytes of text")
    parser.add_argument("--only", choices=["text", "chats"], help="one kind of rows")
    options = parser.parse_args(arguments)
    kinds = [kind for kind in ("text", "chats") if options.only in (None, kind)]
    found = [row for kind in kinds for row in measure(options.megabytes * 1_000_000, is_chat=kind == "chats")]
    write_rows(found, options.json)
    print_rows(found, f"packing {options.megabytes} MB")
    return 0 if all(row.met is not False for row in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
