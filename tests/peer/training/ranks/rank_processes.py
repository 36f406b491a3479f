"""The ranks of one replica as real processes of one thread each: `run_ranks(mesh, work, folder)` gives what each rank found.

All ranks of a test session are forked off one process, which imports torch and the modules of the works once and computes nothing
itself. They end with the call, whatever happens; that process ends with its other end of the socket.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from peer.training.plan.layout import Mesh

ROOT = Path(__file__).parents[4]
LIMIT_S = 500.0
_MOST_BYTES: Final = 1 << 12
_IMPORTED: Final = (
    "torch.distributed.fsdp",
    "tests.peer.training.ranks.ranked_world",
    "tests.peer.training.ranks.split_checks",
)

Found = dict[str, torch.Tensor]
Work = Callable[[Mesh, int, Path], Mapping[str, torch.Tensor]]
"""The work of a rank: a function at the top of a module, that gets its mesh, its rank and the test's folder. `folder / "meeting"` is
an empty folder for `peer.training.ranks.rank_group.meet`. It returns tensors by name.
"""


def run_ranks(mesh: Mesh, work: Work, folder: Path, limit_s: float = LIMIT_S) -> list[Found]:
    """The tensors that each rank's work returned.

    Args:
        folder: the ranks may read and write here.

    Raises:
        RuntimeError: a rank failed or did not come to its end; with what all of them said.
    """
    (folder / "meeting").mkdir(mode=0o700)
    asked = [work.__module__, work.__name__, mesh.model_dump_json(), str(folder)]
    control = _prepared()
    control.send(json.dumps(asked).encode())
    pid = int(control.recv(_MOST_BYTES))
    control.settimeout(limit_s)
    code: int | None = None
    try:
        code = int(control.recv(_MOST_BYTES))
    except TimeoutError:
        os.killpg(pid, signal.SIGKILL)
        control.settimeout(limit_s)
        control.recv(_MOST_BYTES)
    finally:
        control.settimeout(None)
    if code != 0:
        raise RuntimeError(f"ranks ended with {code}:\n{(folder / 'said').read_text()}")
    return [load_file(_result(folder, rank)) for rank in range(mesh.num_ranks)]


@functools.cache
def _prepared() -> socket.socket:
    """The way to the process that forks; it is started once."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            cwd=ROOT,
            env={**os.environ, **one_thread, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _result(folder: Path, rank: int) -> Path:
    return folder / f"found-{rank}.safetensors"


def _be_rank(work: Work, mesh: Mesh, rank: int, folder: Path) -> None:
    """Work, and leave: the collectives' threads must not be waited for."""
    code = 1
    try:
        found = {name: value.detach().clone() for name, value in work(mesh, rank, folder).items()}
        save_file(found, _result(folder, rank))
        code = 0
    except BaseException:  # noqa: BLE001 - it must never return into its parent's code
        print(f"rank {rank}:", traceback.format_exc(), sep="\n", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _lead(module: str, name: str, mesh_json: str, folder: str) -> None:
    """Be the first of a session of all ranks, and leave with 0 if all came to their end; the first that failed ends the others."""
    os.setsid()
    said = os.open(Path(folder) / "said", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    work: Work = getattr(importlib.import_module(module), name)
    mesh, num_running = Mesh.model_validate_json(mesh_json), 0
    for rank in range(mesh.num_ranks):
        if not os.fork():
            _be_rank(work, mesh, rank, Path(folder))
        num_running += 1
    while num_running:
        _, status = os.wait()
        num_running -= 1
        if status:
            os.killpg(0, signal.SIGKILL)
    os._exit(0)


def serve(control: socket.socket) -> None:
    """Run ranks for each that asks, tell the first process' id and then its exit code, until the other end is closed."""
    while asked := control.recv(_MOST_BYTES):
        pid = os.fork()
        if not pid:
            control.close()
            try:
                _lead(*json.loads(asked))
            finally:
                os._exit(1)
        control.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # none is left
        control.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    for each in _IMPORTED:
        importlib.import_module(each)
    gc.freeze()  # or each rank would look through all of it, and copy the memory for that
    serve(socket.socket(fileno=int(sys.argv[1])))
