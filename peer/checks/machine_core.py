"""Judges this machine for `potluck doctor`: readings -> findings, each ok, warn or fail with a fix. Pure.

A fail means that no run can be joined. A warn means that a run can be joined but works worse than it could.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from peer.training.plan.owned_cards_core import OwnedCard
from protocol.identity.key_disk import EXPECTED, REMEDY
from protocol.pipeline.placement.peer_memory import peer_memory_bytes
from protocol.tables import in_bytes

GIB: Final = 1 << 30
MIB: Final = 1 << 20

MEMORY_LEAST_BYTES: Final = 512 * MIB
"""With less memory, torch cannot even be imported twice."""

DISK_LEAST_BYTES: Final = 64 * MIB
"""Room for identity, credential and log. With less, a peer cannot keep any promise to others."""

OPEN_FILES_FEW: Final = 1024
"""The usual limit of most systems. A swarm's sockets and the files of kept states stay well below it."""

OPEN_FILES_LEAST: Final = 128

_COMPILE: Final = (
    "install a C compiler (gcc or clang), then build again: `make install` in a clone, else "
    "`pip install --force-reinstall --no-deps --no-binary potluck-train potluck-train`"
)
_UPDATE_TORCH: Final = "install a torch built for this card (pytorch.org/get-started), or train with --device cpu"


class Level(Enum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `fix` is empty if there is nothing to fix."""

    name: str
    level: Level
    found: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """A reading that could not be taken, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Card:
    """The NVIDIA card that trains, as reported by its driver.

    Attributes:
        driver_cuda: newest CUDA (major, minor) that the driver can run.
        capability: compute capability (major, minor).
    """

    name: str
    driver: str
    driver_cuda: tuple[int, int]
    capability: tuple[int, int]
    memory_total_bytes: int
    memory_free_bytes: int


@dataclass(frozen=True, slots=True)
class NoCard:
    """No driver reports a card that trains. `is_on_bus`: the machine nevertheless has an NVIDIA card. `are_hidden`: the owner's
    variables hide all cards. `are_several`: torch was not asked which of several cards it takes.
    """

    reason: str
    is_on_bus: bool
    are_hidden: bool = False
    are_several: bool = False


@dataclass(frozen=True, slots=True)
class Rocm:
    """The AMD card that trains, as reported by torch.

    Attributes:
        architecture: such as "gfx1100".
        attention: how torch computes it there: "flash", "efficient" or "math"; empty if torch cannot tell.
    """

    version: str
    name: str
    architecture: str
    memory_bytes: int
    attention: str


@dataclass(frozen=True, slots=True)
class Torch:
    """The report of torch itself. `cuda` is empty for a build without CUDA; `architectures` as in torch.cuda.get_arch_list().
    `codecs_problem` comes from the same process: why the compiled codecs are missing, empty if they are there. `card` is the UUID
    of the NVIDIA card that it takes, empty if there is none. `rocm` is the AMD card that it takes, if it is built for those. `cards`
    are all that it sees, and `apart` the pairs that cannot read each other's memory.
    """

    version: str
    cuda: str
    architectures: tuple[str, ...]
    can_use_cuda: bool
    can_use_mps: bool
    codecs_problem: str
    card: str = ""
    rocm: Rocm | None = None
    cards: tuple[OwnedCard, ...] = ()
    apart: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class NoTorch:
    """torch cannot be imported, and why. A torch that is only too slow to answer is `Unread`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of this machine, or of its container if that has less."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Cores:
    """Processor cores: those whose time this process may use, which may be a fraction, and all of the machine."""

    usable: float
    of_machine: int


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk for a run's folder. `missing` is what it lacks to hold a key, as the end of a sentence, empty for nothing;
    `taken_bytes` is the run's present use; `cache_bytes` the limit for its data.
    """

    folder: str
    is_writable: bool
    free_bytes: int
    taken_bytes: int
    cache_bytes: int
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Sockets:
    """The place for the sockets of the network, and why there is none, in one line; one of the two is empty."""

    folder: str
    problem: str


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of installed packages; empty for those that are missing."""

    potluck: str
    protocol: int
    python: str
    torch: str
    hivemind: str


@dataclass(frozen=True, slots=True)
class Readings:
    """All readings of this machine.

    Attributes:
        device: the owner's choice for training: auto, cpu, cuda or mps.
        num_parameters: of the model of the last run, 0 if no run is known.
        run_disk_bytes: the most that the last run keeps on disk, without text and log; 0 if no run is known.
        torch: None if torch was not asked, because importing it is slow.
    """

    device: str
    num_parameters: int
    graphics: Card | NoCard | Unread
    torch: Torch | NoTorch | Unread | None
    memory: Memory | Unread
    cores: Cores | Unread
    disk: Disk | Unread
    sockets: Sockets | Unread
    open_files: int | Unread
    versions: Versions | Unread
    run_disk_bytes: int = 0


def judge(readings: Readings) -> tuple[Finding, ...]:
    """The findings about this machine, in the order of the report."""
    findings = [_graphics(readings)]
    if readings.torch is not None:
        findings += _architecture(readings, readings.torch)
        findings += _codecs(readings.torch)
    findings += [
        _memory(readings.memory, readings.num_parameters),
        _cores(readings.cores),
        _disk(readings.disk, readings.run_disk_bytes),
        _sockets(readings.sockets),
        _open_files(readings.open_files),
        _versions(readings.versions),
    ]
    return tuple(findings)


def worst(findings: Sequence[Finding]) -> Level:
    """The worst level among them; ok for none."""
    found = {finding.level for finding in findings}
    return next((level for level in (Level.FAIL, Level.WARN) if level in found), Level.OK)


_SHOWN_AS: Final = {"bulk": "data port"}
_NAME_WIDTH: Final = len("host's peers")
"""The longest name. The report is printed in parts, which have the same columns."""


def report_lines(findings: Sequence[Finding]) -> list[str]:
    """The report for people: one line a finding, in columns. The names for scripts stay as they are."""
    return [
        f"{f.level.value:<4}  {_SHOWN_AS.get(f.name, f.name):<{_NAME_WIDTH}}  {f.found}{f'; {f.fix}' if f.fix else ''}"
        for f in findings
    ]


def unread(name: str, reading: Unread) -> Finding:
    """The finding for a reading that could not be taken. Nothing is known to be wrong."""
    return Finding(name, Level.WARN, f"could not be read: {reading.reason}")


def runs_on(capability: tuple[int, int], architectures: Sequence[str]) -> str:
    """The entry of a torch build's architecture list that a card of this compute capability can run; empty if there is none.

    Machine code (sm_) runs on its own major version from its minor version on. With suffix "a" it runs on its own version only,
    with "f" within its family. PTX (compute_) is compiled for every newer card.
    """
    for architecture in reversed(architectures):
        kind, _, number = architecture.partition("_")
        suffix = number[-1:] if number[-1:].isalpha() else ""
        digits = number.removesuffix(suffix)
        if len(digits) < 2 or not digits.isdigit():
            continue
        built = int(digits[:-1]), int(digits[-1])
        is_same_major = built[0] == capability[0] and built[1] <= capability[1]
        fits = built == capability if suffix == "a" else is_same_major
        if kind == "compute" and not suffix:
            fits = built <= capability
        if fits and kind in ("sm", "compute"):
            return architecture
    return ""


def _graphics(readings: Readings) -> Finding:
    device, graphics = readings.device, readings.graphics
    rocm = _rocm_of(readings)
    if rocm is not None:
        architecture = f", {rocm.architecture}" if rocm.architecture else ""
        return Finding(
            "gpu", Level.OK, f"{rocm.name}{architecture}, {in_bytes(rocm.memory_bytes)}; ROCm {rocm.version}"
        )
    if isinstance(graphics, Unread):
        return unread("gpu", graphics)
    if isinstance(graphics, Card):
        major, minor = graphics.driver_cuda
        memory = f"{in_bytes(graphics.memory_free_bytes)} of {in_bytes(graphics.memory_total_bytes)} free"
        found = f"{graphics.name}, {memory}; driver {graphics.driver}, up to CUDA {major}.{minor}"
        if device in ("auto", "cuda") and graphics.memory_free_bytes < GIB:
            return Finding("gpu", Level.WARN, found, "end other programs that use the card, or train with --device cpu")
        return Finding("gpu", Level.OK, found)
    where = "the CPU" if device == "auto" else f"--device {device}"
    if graphics.are_several:
        return Finding("gpu", Level.OK, graphics.reason)
    if graphics.are_hidden:
        level = Level.FAIL if device == "cuda" else Level.OK
        fix = "unset it, or train with --device cpu" if device == "cuda" else ""
        return Finding("gpu", level, graphics.reason if fix else f"{graphics.reason}; training runs on {where}", fix)
    if device == "cuda":
        fix = "install its driver, or train with --device cpu"
        return Finding("gpu", Level.FAIL, f"--device cuda, and no NVIDIA card answers ({graphics.reason})", fix)
    if graphics.is_on_bus and device == "auto":
        found = f"an NVIDIA card without a working driver ({graphics.reason}); training runs on the CPU"
        return Finding("gpu", Level.WARN, found, "install its driver; in a container pass the card in (--gpus all)")
    return Finding("gpu", Level.OK, f"no NVIDIA card; training runs on {where}")


def _architecture(readings: Readings, torch: Torch | NoTorch | Unread) -> list[Finding]:
    """Whether torch can use the card; no finding without a card."""
    name, device, card = "torch", readings.device, readings.graphics
    if isinstance(torch, Unread):
        return [unread(name, torch)]
    if isinstance(torch, NoTorch):
        return [Finding(name, Level.FAIL, f"torch cannot be imported: {torch.reason}", "install potluck again")]
    if device == "mps":
        return [_mps(torch)]
    if _rocm_of(readings) is not None and torch.rocm is not None:
        return [_attention(torch.version, torch.rocm)]
    if not isinstance(card, Card) or device == "cpu":
        return [Finding(name, Level.OK, f"torch {torch.version}, on the CPU")]
    # With --device auto, a torch without CUDA trains on the CPU without a message.
    unusable = Level.FAIL if device == "cuda" else Level.WARN
    if not torch.cuda:
        return [Finding(name, unusable, f"torch {torch.version} was built without CUDA", _UPDATE_TORCH)]
    major = torch.cuda.partition(".")[0]
    if major.isdigit() and int(major) > card.driver_cuda[0]:
        found = f"torch {torch.version} needs CUDA {torch.cuda}, the driver runs up to {card.driver_cuda[0]}.{card.driver_cuda[1]}"
        return [Finding(name, unusable, found, "install a newer driver, or a torch for the older CUDA")]
    if not torch.can_use_cuda:
        found = f"torch {torch.version} (CUDA {torch.cuda}) finds no card that it can use"
        return [Finding(name, unusable, found, "reboot after a driver update; look at CUDA_VISIBLE_DEVICES")]
    return [_kernels(card, torch)]


def _rocm_of(readings: Readings) -> Rocm | None:
    """The AMD card, where training may use it."""
    may_use = readings.device in ("auto", "cuda")
    return readings.torch.rocm if may_use and isinstance(readings.torch, Torch) else None


def _attention(version: str, rocm: Rocm) -> Finding:
    found = f"torch {version} on ROCm; attention: {rocm.attention or 'not known'}"
    if rocm.attention != "math":
        return Finding("torch", Level.OK, found)
    takes = f"{found}, which takes memory by the square of the context and is slow"
    return Finding("torch", Level.WARN, takes, "install a newer torch for ROCm (pytorch.org/get-started)")


def _codecs(torch: Torch | NoTorch | Unread) -> list[Finding]:
    """Without a compiler at installation the codecs still work, but more slowly."""
    if not isinstance(torch, Torch):
        return []
    if not torch.codecs_problem:
        return [Finding("codecs", Level.OK, "compiled for this machine")]
    found = f"not compiled ({torch.codecs_problem}): rounds take several times more processor time"
    return [Finding("codecs", Level.WARN, found, _COMPILE)]


def _kernels(card: Card, torch: Torch) -> Finding:
    own, match = f"sm_{card.capability[0]}{card.capability[1]}", runs_on(card.capability, torch.architectures)
    if not match:
        has = ", ".join(torch.architectures) or "none"
        found = f"the card is {own}, and torch {torch.version} has code for {has}: training would end with 'no kernel image'"
        return Finding("torch", Level.FAIL, found, _UPDATE_TORCH)
    return Finding("torch", Level.OK, f"torch {torch.version} (CUDA {torch.cuda}) has {match} for this card, {own}")


def _mps(torch: Torch) -> Finding:
    if torch.can_use_mps:
        return Finding("torch", Level.OK, f"torch {torch.version}, on mps")
    found = f"--device mps, and torch {torch.version} finds no such device"
    return Finding("torch", Level.FAIL, found, "train with --device auto")


def _memory(memory: Memory | Unread, num_parameters: int) -> Finding:
    if isinstance(memory, Unread):
        return unread("memory", memory)
    needed_bytes = peer_memory_bytes(num_parameters)
    for_what = "the last run" if num_parameters else "a small model"
    found = f"{in_bytes(memory.available_bytes)} of {in_bytes(memory.total_bytes)} free"
    takes = f"{for_what} takes about {in_bytes(needed_bytes)}"
    fix = "end other programs, or add memory or swap"
    if memory.available_bytes < MEMORY_LEAST_BYTES:
        return Finding("memory", Level.FAIL, f"{found}, {takes}", fix)
    if memory.available_bytes < needed_bytes:
        return Finding("memory", Level.WARN, f"{found}, {takes}", fix)
    return Finding("memory", Level.OK, f"{found}, {takes}")


def _cores(cores: Cores | Unread) -> Finding:
    if isinstance(cores, Unread):
        return unread("cores", cores)
    if cores.usable >= cores.of_machine:
        return Finding("cores", Level.OK, f"{cores.of_machine}")
    return Finding(
        "cores", Level.OK, f"{cores.usable:g} of the machine's {cores.of_machine}, as this process's group allows"
    )


def _disk(disk: Disk | Unread, run_disk_bytes: int) -> Finding:
    if isinstance(disk, Unread):
        return unread("disk", disk)
    if not disk.is_writable:
        fix = "make it writable, or choose another with --state-dir"
        return Finding("disk", Level.FAIL, f"{disk.folder} cannot be written", fix)
    if disk.missing:
        found = f"the disk of {disk.folder} {disk.missing}; expected {EXPECTED}"
        return Finding("disk", Level.FAIL, found, REMEDY)
    needed_bytes = disk.cache_bytes + run_disk_bytes
    missing_bytes = max(0, needed_bytes - disk.taken_bytes)
    found = f"{in_bytes(disk.free_bytes)} free at {disk.folder}"
    fix = "free some, or choose another disk with --state-dir"
    if disk.free_bytes < DISK_LEAST_BYTES:
        return Finding("disk", Level.FAIL, f"{found}; a peer needs {in_bytes(DISK_LEAST_BYTES)} for itself", fix)
    # Without a run its size is unknown; only its data has a limit.
    what = "the last run and its data take" if run_disk_bytes else "the data of a run takes"
    takes = f"{what} at most {in_bytes(needed_bytes)}"
    if disk.taken_bytes:
        takes += f", {in_bytes(disk.taken_bytes)} of it there"
    if disk.free_bytes < missing_bytes:
        fix += "; or allow less data with --cache-bytes"
        return Finding("disk", Level.WARN, f"{found}; {takes}", fix)
    return Finding("disk", Level.OK, f"{found}; {takes}")


def _sockets(sockets: Sockets | Unread) -> Finding:
    if isinstance(sockets, Unread):
        return unread("sockets", sockets)
    if sockets.problem:
        return Finding("sockets", Level.FAIL, sockets.problem)
    return Finding("sockets", Level.OK, f"below {sockets.folder}")


def _open_files(limit: int | Unread) -> Finding:
    if isinstance(limit, Unread):
        return unread("open files", limit)
    if limit >= OPEN_FILES_FEW:
        return Finding("open files", Level.OK, f"up to {limit}")
    level = Level.WARN if limit >= OPEN_FILES_LEAST else Level.FAIL
    fix = f"ulimit -n {OPEN_FILES_FEW} in this shell, or LimitNOFILE={OPEN_FILES_FEW} in its service"
    return Finding("open files", level, f"up to {limit}, and sockets count, too", fix)


def _versions(versions: Versions | Unread) -> Finding:
    if isinstance(versions, Unread):
        return unread("versions", versions)
    installed = {"potluck": versions.potluck, "protocol": str(versions.protocol), "Python": versions.python}
    installed |= {"torch": versions.torch, "hivemind": versions.hivemind}
    absent = [name for name in ("torch", "hivemind") if not installed[name]]
    if absent:
        return Finding("versions", Level.FAIL, f"{' and '.join(absent)} not installed", "install potluck again")
    return Finding("versions", Level.OK, ", ".join(f"{name} {version}" for name, version in installed.items()))
