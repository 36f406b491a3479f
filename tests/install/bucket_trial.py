"""Checkpoints pushed to a bucket by the real interface of a store, on a server of this machine."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch

from averaging.models.llama.config import LlamaConfig
from averaging.state.state import UnitState, state_root
from coordinator.checkpoints.checkpoints import CheckpointContent, verify_checkpoint, write_checkpoint
from coordinator.push.push import INDEX_NAME, push_checkpoint, push_scores
from coordinator.scores.score_files import SCORES_NAME
from protocol.errors import StorageError
from protocol.ids import CommitId
from protocol.tensors.model_config import model_schema
from protocol.tensors.tensor_schema import ChunkGrid

BUCKET: Final = "trial"
START_LIMIT_S: Final = 60.0
MODEL: Final = LlamaConfig(dim=16, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=24, context_tokens=12)


def try_bucket(kind: str, fs: Any, folder: Path) -> None:
    """Two checkpoints, one after the other, and scores; then a bucket that is not there.

    Args:
        kind: of the addresses, such as "s3".
        fs: fsspec's interface of that kind. The bucket is there and empty.

    Raises:
        SystemExit: what lies in the bucket is not what was pushed.
    """
    first, second = (_checkpoint(folder / "checkpoints", index) for index in (1, 2))
    address = f"{kind}://{BUCKET}/run"
    push_checkpoint(address, first, folder / "scratch")
    pushed = push_checkpoint(address, second, folder / "scratch")
    (second / SCORES_NAME).write_text("{}")
    push_scores(address, second)
    _check(fs, pushed.name, folder / "copy")
    try:
        push_checkpoint(f"{kind}://is-not-there/run", second, folder / "scratch")
    except StorageError:
        return
    raise SystemExit("a bucket that is not there took a checkpoint")


def _check(fs: Any, name: str, copy: Path) -> None:
    """The newest checkpoint is there alone, verifies once it is fetched, and the index names its scores."""
    fs.invalidate_cache()
    found = {path.rpartition("/")[2] for path in fs.ls(f"{BUCKET}/run", detail=False)}
    if found != {INDEX_NAME, name}:
        raise SystemExit(f"found {sorted(found)} in the bucket; expected {INDEX_NAME} and {name}")
    copy.mkdir(parents=True)
    for path in fs.ls(f"{BUCKET}/run/{name}", detail=False):
        if fs.isfile(path):
            fs.get_file(path, str(copy / path.rpartition("/")[2]))
    verify_checkpoint(copy)
    if SCORES_NAME not in json.loads(fs.cat_file(f"{BUCKET}/run/{INDEX_NAME}"))["files"]:
        raise SystemExit("the scores that came later are not in the index")


def _checkpoint(folder: Path, index: int) -> Path:
    schema = model_schema(MODEL)
    grid, anchor_N = ChunkGrid(schema.num_elements, 1024), torch.full((schema.num_elements,), 0.01 * index)
    state = UnitState(
        schema.unit, CommitId(bytes([index]) * 32), index, 600 * index, anchor_N, torch.zeros_like(anchor_N)
    )
    root = state_root(state, grid)
    content = CheckpointContent("run", "ab" * 32, schema, grid, MODEL.model_dump(), state, root)
    return folder / write_checkpoint(folder, content, now_unix_s=index).path


@contextmanager
def serving(command: Sequence[str], url: str) -> Iterator[None]:
    """A server of this command, which answers at the URL and ends with the block.

    Raises:
        SystemExit: it ended, or did not answer in time.
    """
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        _await(url, process)
        yield
    finally:
        process.terminate()
        process.wait()


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(url, timeout=1.0):
                return
        except (urllib.error.URLError, OSError):
            with suppress(subprocess.TimeoutExpired):
                raise SystemExit(f"the server ended with code {process.wait(0.1)}") from None
    raise SystemExit(f"the server did not answer within {START_LIMIT_S:.0f} s")
