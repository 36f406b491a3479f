"""A run that is over after one round of one peer, and its host as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from peer.demo.processes import Running, wait_for_invite
from protocol.errors import PotluckError
from tests.install.running import Failed

HOST_LIMIT_S: Final = 600.0
GOODBYE_LIMIT_S: Final = 120.0
NUM_FILES: Final = 8
PEER_IS_DONE: Final = "The run is complete."
"""The beginning of a peer's last words in a run that it saw to its end."""

_PID: Final = re.compile(r"pid (\d+)\n")

_RUN: Final = """
[run]
name = "one-round"
total_tokens = 64
min_members = 1
[model]
dim = 16
num_layers = 1
num_heads = 2
num_kv_heads = 1
ffn_dim = 32
context_tokens = 32
[data]
source = "{source}"
glob = "corpus/*.{ending}"
heldout_every = 4
[inner]
learning_rate = 0.01
batch_tokens = 64
[round]
target_tokens = 64
longest_interval_s = 2.0
[checkpoint]
every_rounds = 1
"""


def write_run_of_one_round(folder: Path, source: str = "text") -> Path:
    """Write `run.toml` and beside it `corpus/`, of text files or with `source` = "parquet" of one file of rows. Returns the former."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    texts = [f"A pot in which {number} people put what they have. " * 200 for number in range(NUM_FILES)]
    if source == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), corpus / "rows.parquet")
    else:
        for number, text in enumerate(texts):
            (corpus / f"{number}.txt").write_text(text, encoding="utf8")
    run_file = folder / "run.toml"
    ending = "parquet" if source == "parquet" else "txt"
    run_file.write_text(_RUN.format(source=source, ending=ending), encoding="utf8")
    return run_file


@contextmanager
def one_host(
    command: Sequence[str | Path], folder: Path, environment: Mapping[str, str], *, says_pid: bool = False
) -> Iterator[str]:
    """The invite of a host that runs meanwhile; its output is in `folder`/host.log. With `says_pid` the first line of that is "pid
    NUMBER", and the goodbye is asked of that process: buildah passes no signal on.

    Raises:
        Failed: it did not start, or it left with another code than 0.
    """
    log = folder / "host.log"
    words = [str(word) for word in command]
    with log.open("wb") as out:
        host = subprocess.Popen(
            words, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        yield wait_for_invite(Running(host, log, time.time()), HOST_LIMIT_S)
    except PotluckError as error:
        raise Failed(str(error)) from error
    finally:
        said = _PID.match(log.read_text(encoding="utf8", errors="replace")) if says_pid else None
        if host.poll() is None:
            os.kill(int(said[1]) if said else host.pid, signal.SIGTERM)
        try:
            host.wait(timeout=GOODBYE_LIMIT_S)
        except subprocess.TimeoutExpired:
            host.kill()
    if host.wait():
        raise Failed(
            f"the host ended with {host.returncode}: {log.read_text(encoding='utf8', errors='replace')[-500:]}"
        )
