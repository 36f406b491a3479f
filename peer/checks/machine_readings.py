"""The readings of `potluck doctor` on this machine. Each has a deadline, and none can end the command: a failure is a reading, too.

Nothing heavy is imported here. torch is asked in a separate process, which may hang or crash.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, TypeVar

from averaging.release import installed_release
from averaging.system import machine_limits
from peer.cards.all_cards import MachineCards, cards_of, with_driver
from peer.checks.machine_core import (
    Card,
    Cores,
    Disk,
    Memory,
    NoCard,
    NoTorch,
    Readings,
    Rocm,
    Sockets,
    Torch,
    Unread,
    Versions,
)
from peer.machine.card import CardsHidden, CardUnknown, find_card, largest_card, text_of
from peer.machine.torch_child import ask_torch
from protocol.errors import MachineError
from protocol.estimates.estimates import run_size, weights_bytes
from protocol.identity.key_disk import missing_on_disk
from protocol.ids import PROTOCOL_VERSION
from protocol.run.manifest import RunConfig

T = TypeVar("T")

READING_WITHIN_S: Final = 2.0
"""Long enough for a healthy machine. A driver or a network disk that hangs is reported as such."""

CARD_WITHIN_S: Final = 10.0
"""A driver that keeps nothing loaded between uses takes seconds to wake the card."""

TORCH_WITHIN_S: Final = 60.0
"""Importing torch may take very long from a cold or distant disk."""

_NVIDIA_ON_PCI: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"

_TORCH_SAYS: Final = """
import json, torch
from peer.cards.torch_cards import torch_cards
card = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", "") if torch.cuda.is_available() else ""
try:
    from averaging.codecs.compiled import problem
    codecs_problem = problem()
except (ImportError, OSError) as error:
    codecs_problem = f"{type(error).__name__}: {error}"
rocm = None
if torch.version.hip and torch.cuda.is_available():
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    try:
        cuda, q = torch.backends.cuda, torch.zeros(1, 2, 64, 64, dtype=torch.float16, device="cuda")
        given = cuda.SDPAParams(q, q, q, None, 0.0, True, False)
        is_flash, is_efficient = cuda.can_use_flash_attention(given), cuda.can_use_efficient_attention(given)
        attention = "flash" if is_flash else "efficient" if is_efficient else "math"
    except (AttributeError, TypeError, RuntimeError):
        attention = ""
    rocm = {"version": torch.version.hip, "name": found.name, "architecture": getattr(found, "gcnArchName", ""),
        "memory_bytes": found.total_memory, "attention": attention}
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda or "",
    "architectures": torch.cuda.get_arch_list(), "can_use_cuda": torch.cuda.is_available(),
    "can_use_mps": torch.backends.mps.is_available(), "codecs_problem": codecs_problem, "card": str(card), "rocm": rocm,
    "all": torch_cards() if torch.cuda.is_available() else None}))
"""


def within(limit_s: float, read: Callable[[], T]) -> T | Unread:
    """The reading, or why there is none. A reader that hangs is left behind on its daemon thread, which does not keep the process
    alive.
    """
    results: queue.SimpleQueue[T | Unread] = queue.SimpleQueue()

    def work() -> None:
        try:
            results.put(read())
        except Exception as error:  # noqa: BLE001 - a doctor reports what is broken, whatever it is
            results.put(Unread(f"{type(error).__name__}: {error}"))

    threading.Thread(target=work, daemon=True).start()
    try:
        return results.get(timeout=limit_s)
    except queue.Empty:
        return Unread(f"no answer within {limit_s:g} s")


def read_machine(
    state_dir: Path, device: str, *, cache_bytes: int, run: RunConfig | None = None, asks_torch: bool = True
) -> Readings:
    """Take all readings. `device`: auto, cpu, cuda or mps; `run`: the last one, None if it is not known. Blocks for
    the sum of the deadlines at most. Without torch it is quick on a healthy machine.
    """
    torch = read_torch() if asks_torch else None
    uuid = (torch.card or None) if isinstance(torch, Torch) else None
    return Readings(
        device=device,
        num_parameters=0 if run is None else run.held_elements,
        run_disk_bytes=0 if run is None else run_size(run).disk_bytes + weights_bytes(run),
        torch=torch,
        graphics=within(CARD_WITHIN_S, partial(read_graphics, uuid, takes_any=asks_torch)),
        memory=within(READING_WITHIN_S, read_memory),
        cores=within(READING_WITHIN_S, read_cores),
        disk=within(READING_WITHIN_S, partial(read_disk, state_dir, cache_bytes)),
        sockets=within(READING_WITHIN_S, partial(read_sockets, state_dir)),
        open_files=within(READING_WITHIN_S, read_open_files),
        versions=within(READING_WITHIN_S, read_versions),
    )


def read_graphics(uuid: str | None = None, *, takes_any: bool = False) -> Card | NoCard:
    """The NVIDIA card that trains, as reported by its driver.

    Args:
        uuid: torch's name for it, None if torch has named none.
        takes_any: where several cards may be meant, read the one with most memory.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            card = find_card(pynvml, uuid)
        except CardUnknown:
            if not takes_any:
                raise
            card = largest_card(pynvml)
        memory = pynvml.nvmlDeviceGetMemoryInfo(card.handle)
        driver_cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(card.whole)
        return Card(
            name=text_of(pynvml.nvmlDeviceGetName(card.handle)),
            driver=text_of(pynvml.nvmlSystemGetDriverVersion()),
            driver_cuda=(driver_cuda // 1000, driver_cuda % 1000 // 10),
            capability=(int(major), int(minor)),
            memory_total_bytes=int(memory.total),
            memory_free_bytes=int(memory.free),
        )
    except (CardsHidden, CardUnknown) as error:
        return NoCard(str(error), False, isinstance(error, CardsHidden), isinstance(error, CardUnknown))
    except (pynvml.NVMLError, OSError) as error:
        return NoCard(str(error), has_nvidia_on_bus(Path("/sys/bus/pci/devices")))


def has_nvidia_on_bus(devices: Path) -> bool:
    """Whether a graphics card from NVIDIA is among the PCI devices; False if the system does not list them as Linux does."""
    for device in devices.glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text().strip(), (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == _NVIDIA_ON_PCI and kind.startswith(_DISPLAY_CLASS):
            return True
    return False


def read_torch(limit_s: float = TORCH_WITHIN_S, program: str = _TORCH_SAYS) -> Torch | NoTorch | Unread:
    """Ask torch in a separate process."""
    try:
        done = ask_torch(program, limit_s)
    except subprocess.TimeoutExpired:
        return Unread(f"no answer within {limit_s:g} s")
    except OSError as error:
        return Unread(f"no process could be started ({error.strerror})")
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        return NoTorch(said[-1] if said else f"it ended with {done.returncode}")
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        version, everything = str(answer["version"]), answer.get("all")
        found = with_driver(cards_of(everything)) if everything else MachineCards()
        return Torch(
            version=version,
            cuda=str(answer["cuda"]),
            architectures=tuple(str(name) for name in answer["architectures"]),
            can_use_cuda=bool(answer["can_use_cuda"]),
            can_use_mps=bool(answer["can_use_mps"]),
            codecs_problem=str(answer["codecs_problem"]),
            card=str(answer["card"]),
            rocm=_rocm_of(answer.get("rocm")),
            cards=found.cards,
            apart=tuple(sorted(found.links.apart)),
        )
    except (ValueError, KeyError, IndexError, TypeError):
        return Unread("its answer cannot be understood")


def _rocm_of(answer: Mapping[str, object] | None) -> Rocm | None:
    if answer is None:
        return None
    return Rocm(
        version=str(answer["version"]),
        name=str(answer["name"]),
        architecture=str(answer["architecture"]),
        memory_bytes=int(str(answer["memory_bytes"])),
        attention=str(answer["attention"]),
    )


def read_memory() -> Memory:
    """The memory of the machine, or of our container."""
    found = machine_limits.read_memory()
    return Memory(found.total_bytes, found.available_bytes)


def read_cores() -> Cores:
    """The cores of the machine, or of our container."""
    found = machine_limits.read_cores()
    return Cores(found.usable, found.of_machine)


def read_disk(state_dir: Path, cache_bytes: int) -> Disk:
    """The disk of `state_dir`. The folder is not created; if it is missing, the nearest existing parent counts."""
    there = _nearest(state_dir)
    taken_bytes = 0
    for folder, _, files in os.walk(state_dir):
        for name in files:
            try:
                taken_bytes += os.stat(Path(folder, name), follow_symlinks=False).st_size
            except OSError:
                continue  # removed in the meantime
    system = os.statvfs(there)
    is_writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    missing = missing_on_disk(there) if is_writable else ""
    free_bytes = system.f_bavail * system.f_frsize
    return Disk(str(state_dir), is_writable, free_bytes, taken_bytes, cache_bytes, missing)


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest existing one above it."""
    there = folder.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    return there


def read_sockets(state_dir: Path) -> Sockets:
    """The place of the sockets, tried as a daemon does and cleared again."""
    from averaging.network.libp2p.socket_folder import make_socket_folder, socket_roots

    try:
        folder = make_socket_folder(socket_roots(_nearest(state_dir)))
    except MachineError as error:
        return Sockets("", error.one_line())
    folder.rmdir()
    return Sockets(str(folder.parent), "")


def read_open_files() -> int:
    """The limit of open files and sockets of a process."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def read_versions() -> Versions:
    """Versions of the installed packages."""
    return Versions(
        potluck=installed_release(),
        protocol=PROTOCOL_VERSION,
        python=platform.python_version(),
        torch=_installed("torch"),
        hivemind=_installed("hivemind"),
    )


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
