"""`python -m tests.benchmarks.file_systems --json FILE`: a run on file systems that lack much, and on a disk that fills up.

As root, each file system is mounted, and a host and three peers with a small model have all their folders there: `tmpfs` lies
in memory, `overlay` lays one folder over another, `ramfs` does not even know its size. Then the disk of one peer
fills up while its run goes on, and has room again later. A start that is refused counts as a refusal, with
its line.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from averaging.models.llama.config import LlamaConfig
from peer.demo.processes import last_line
from protocol.errors import MachineError
from protocol.run.training_sections import InnerSection
from tests.benchmarks.memory_runs import Run
from tests.benchmarks.places import LOOPBACK, Place, Places
from tests.benchmarks.processes import Children, open_children
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.swarm import BenchPeer, Swarm, start_swarm, wait_until

BENCH: Final = "file_systems"
KINDS: Final = ("tmpfs", "overlay", "ramfs")
NUM_PEERS: Final = 3
COMMITS: Final = 6
LIMIT_S: Final = 240.0
LEFT_BYTES: Final = 1 << 16
"""Room on the full disk: less than a round writes."""

ROOM_MB: Final = 512
MODEL: Final = LlamaConfig(dim=64, num_layers=2, num_heads=2, num_kv_heads=1, ffn_dim=176, context_tokens=32)
_COMMAND_LIMIT_S: Final = 60.0
_PIECE_BYTES: Final = 1 << 20


@contextmanager
def mounted(kind: str, folder: Path) -> Iterator[Path]:
    """A new file system of this kind, which is gone at the end.

    Raises:
        MachineError: not root, or the kernel does not know it.
    """
    target, below = folder / kind, folder / f"{kind}-below"
    for each in (target, below, below / "lower", below / "upper", below / "work"):
        each.mkdir(parents=True)
    match kind:
        case "overlay":
            layers = f"lowerdir={below}/lower,upperdir={below}/upper,workdir={below}/work"
            _run("mount", "-t", "overlay", "overlay", "-o", layers, str(target))
        case _:
            _run("mount", "-t", kind, kind, "-o", f"size={ROOM_MB}m", str(target))
    try:
        yield target
    finally:
        _run("umount", "--lazy", str(target))


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMMAND_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", "") or str(error)
        raise MachineError(f"{command[0]}: {told.strip()}", "root, and a kernel that knows the file system") from error


def _swarm(children: Children, directory: Path) -> Swarm:
    inner = InnerSection(learning_rate=0.001, batch_tokens=2 * MODEL.context_tokens)
    run = Run("files", MODEL, inner=inner, steps=32, limit_s=LIMIT_S)
    places = Places(LOOPBACK, (Place(),) * NUM_PEERS, "loopback")
    flags = ("--device", "cpu", "--num-threads", "1")
    return start_swarm(children, directory, places, run.config, peer_environment={}, peer_flags=flags)


def rounds_on(children: Children, directory: Path) -> tuple[int, str]:
    """The commits of all peers whose folders lie there, up to COMMITS, and a refusal if the start was refused."""
    directory.mkdir()
    try:
        swarm = _swarm(children, directory)
        wait_until(lambda: min(map(_index, swarm.peers.values())) >= COMMITS, LIMIT_S, 0.2)
        found = min(map(_index, swarm.peers.values()))
        swarm.close_logs()
        return found, "" if found >= COMMITS else last_line(swarm.peers[1].running)
    except MachineError as error:
        return 0, error.one_line()
    finally:
        children.kill_all()


def _index(peer: BenchPeer) -> int:
    status = peer.status()
    return -1 if status is None else status.index


def filled_up(children: Children, folder: Path) -> dict[str, bool]:
    """The promises of a full disk at one peer, and whether each was kept."""
    directory = folder / "full-run"
    directory.mkdir()
    with mounted("tmpfs", folder / "full") as disk:
        (disk / "peer").mkdir(mode=0o700)
        (directory / "peer-1").symlink_to(disk / "peer")
        try:
            swarm = _swarm(children, directory)
            return _watched(swarm, disk)
        finally:
            children.kill_all()


def _watched(swarm: Swarm, disk: Path) -> dict[str, bool]:
    peer, others = swarm.peers[1], [swarm.peers[number] for number in (2, 3)]
    filler = disk / "filler"
    _fill(filler, shutil.disk_usage(disk).free - LEFT_BYTES)
    is_said = wait_until(lambda: _trouble(peer) != "", LIMIT_S, 0.2)
    print(f"said: {_trouble(peer)!r} at round {_index(peer)}", flush=True)
    head = max(map(_index, others))
    others_go_on = wait_until(lambda: min(map(_index, others)) >= head + COMMITS, LIMIT_S, 0.2)
    is_alive = peer.is_running
    filler.unlink()
    head = max(map(_index, others))
    comes_back = wait_until(lambda: _index(peer) >= head + 2, LIMIT_S, 0.2)
    is_over = wait_until(lambda: _trouble(peer) == "", LIMIT_S, 0.2)
    swarm.close_logs()
    return {
        "its peer says so": is_said,
        "the others' rounds go on": others_go_on,
        "its peer lives on": is_alive,
        "its peer takes part again once there is room": comes_back and is_over,
    }


def _fill(path: Path, num_bytes: int) -> None:
    with path.open("wb") as file:
        for begin in range(0, num_bytes, _PIECE_BYTES):
            file.write(bytes(min(_PIECE_BYTES, num_bytes - begin)))


def _trouble(peer: BenchPeer) -> str:
    status = peer.status()
    return "" if status is None else status.trouble or ""


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.file_systems", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--only", choices=(*KINDS, "full"), help="one of them")
    options = parser.parse_args(arguments)
    settings: dict[str, object] = {"peers": NUM_PEERS, "commits": COMMITS, "machine": machine()}
    row, rows = partial(Row, BENCH, trials=1), list[Row]()
    with (
        tempfile.TemporaryDirectory(prefix="potluck-files-") as folder,
        open_children(Path(folder) / "logs") as children,
    ):
        for kind in KINDS if options.only in (None, *KINDS) else ():
            if options.only in (None, kind):
                with mounted(kind, Path(folder)) as disk:
                    found, refused = rounds_on(children, disk / "run")
                told = {**settings, "refused": refused}
                has = found >= COMMITS or bool(refused)
                rows.append(
                    row(
                        f"all folders on {kind}: commits",
                        found,
                        "",
                        target=f">= {COMMITS}, or refused",
                        met=has,
                        settings=told,
                    )
                )
        for promise, is_kept in filled_up(children, Path(folder)).items() if options.only in (None, "full") else ():
            rows.append(
                row(f"a disk fills up: {promise}", float(is_kept), "", target="= 1", met=is_kept, settings=settings)
            )
    write_rows(rows, options.json)
    print_rows(rows, "file systems")
    return 0 if all(each.met is not False for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
