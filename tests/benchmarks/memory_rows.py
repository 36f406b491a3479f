"""The rows of memory.py: bytes a value from runs at two sizes of the model, beside what they are to be. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from protocol.estimates.estimates import run_size, unit_values
from protocol.estimates.unit_disk import generation_spacing, num_kept_updates
from protocol.run.traffic import update_bytes
from protocol.tensors.model_config import model_schema
from tests.benchmarks.memory_runs import Peaks, PeerPeaks, Run, Seen
from tests.benchmarks.results import Row

BENCH: Final = "memory"
MOST_OF_TRAINING: Final = 1.25
MOST_PROMISED: Final = 1.25
MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Figure:
    """Bytes a value: `copies` where each vector is a private copy, and the most that it may be."""

    copies: float | None
    most: float | None


ROUND: Final = Figure(34.0, 14.0)
ROUND_ANONYMOUS: Final = Figure(None, 10.0)
QUIET: Final = Figure(None, 9.0)
QUIET_ANONYMOUS: Final = Figure(None, 1.0)
FEEDBACK_MORE: Final = Figure(None, 8.0)
MAPPING: Final = Figure(8.0, 4.5)
MAPPING_RESIDENT: Final = Figure(None, 0.1)
HOST: Final = Figure(24.0, 9.0)
JOIN: Final = Figure(26.0, 9.0)
TOLD: Final = Figure(None, None)
MOST_WRITTEN: Final = 1.5
"""Of the encoding's bytes, at a commit."""

COMMITS_A_GENERATION: Final = 16
"""Fewer commits tell no average: a state is written once in as many with int8 (protocol/estimates/unit_disk.py)."""

RARE: Final = 4
"""A state that comes once in more than so many times the watched commits hardly counts in the average."""


def streaming(fragments: int) -> Figure:
    """The peak with so many fragments."""
    return Figure(45.0, 9.0 + 20.0 / fragments)


@dataclass(frozen=True, slots=True)
class Result:
    """A run and what was seen of it."""

    run: Run
    seen: Seen

    @property
    def num_values(self) -> int:
        """Of the model."""
        return model_schema(self.run.model).num_elements


Read = Callable[[Seen], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Slope:
    """How a figure grows with the model: for each trial the bytes of a value, and the bytes without any."""

    values: list[float]
    base: float


def slope(small: Result, large: Result, read: Read) -> Slope:
    """From two runs that differ in size alone; the trials of both are paired in order of size."""
    few, many = sorted(read(small.seen)), sorted(read(large.seen))
    grown = [(b - a) / (large.num_values - small.num_values) for a, b in zip(few, many, strict=True)]
    return Slope(grown, few[-1] - grown[-1] * small.num_values)


def beside_base(only: Result, base: float, read: Read) -> Slope:
    """From one run, and the bytes without any value that other runs told."""
    return Slope([(num_bytes - base) / only.num_values for num_bytes in sorted(read(only.seen))], base)


def value_row(metric: str, values: Sequence[float], figure: Figure, settings: Mapping[str, object]) -> Row:
    """Bytes a value: the worst trial must keep the target."""
    worst, most = max(values), figure.most
    return Row(
        BENCH,
        metric,
        round(worst, 2),
        "B/value",
        figure.copies,
        None if figure.copies is None else round(worst / figure.copies, 3),
        "" if most is None else f"<= {most:g}",
        None if most is None else worst <= most,
        len(values),
        {"best": round(min(values), 2), "worst": round(worst, 2)},
        settings,
    )


KINDS: Final[Mapping[str, Callable[[Peaks], int]]] = {
    "resident": lambda peaks: peaks.resident,
    "anonymous": lambda peaks: peaks.kinds.anonymous,
    "shared": lambda peaks: peaks.kinds.shared,
    "files": lambda peaks: peaks.kinds.files,
    "mapping": lambda peaks: peaks.kinds.mapping,
    "given up": lambda peaks: peaks.lazily_free,
    "resident, without the mapping": lambda peaks: peaks.kinds.unshared,
    "resident, without what was given up": lambda peaks: peaks.resident - peaks.lazily_free,
}


def kinds_rows(
    name: str,
    of: Callable[[Seen], Sequence[Peaks]],
    grown: Callable[[Read], Slope],
    figures: Mapping[str, Figure],
    settings: Mapping[str, object],
) -> list[Row]:
    """One row for all that is resident, and one for each kind of page."""
    rows = []
    for kind in KINDS:
        values = grown(partial(_of_kind, kind, of)).values
        rows.append(value_row(f"{name}: {kind}", values, figures.get(kind, TOLD), settings))
    return rows


def _of_kind(kind: str, of: Callable[[Seen], Sequence[Peaks]], seen: Seen) -> list[int]:
    return [KINDS[kind](peaks) for peaks in of(seen)]


def daemons(peers: Sequence[PeerPeaks]) -> list[Peaks]:
    """Of each peer."""
    return [peer.daemon for peer in peers]


def trainings(peers: Sequence[PeerPeaks]) -> list[Peaks]:
    """Of each peer."""
    return [peer.training for peer in peers]


def whole_model_rows(small: Result, large: Result, plain: tuple[int, int], settings: Mapping[str, object]) -> list[Row]:
    """Everything about int8 without feedback, from two sizes. `plain`: peaks of the plain loop at both."""

    def grown(read: Read) -> Slope:
        return slope(small, large, read)

    plain_value = (plain[1] - plain[0]) / (large.num_values - small.num_values)
    rows = kinds_rows(
        "daemon, peak of a round", lambda seen: daemons(seen.rounds), grown,
        {"resident": ROUND, "anonymous": ROUND_ANONYMOUS}, settings,
    )  # fmt: skip
    rows += kinds_rows(
        "daemon, between rounds", lambda seen: daemons(seen.quiet), grown,
        {"resident": QUIET, "anonymous": QUIET_ANONYMOUS, "resident, without what was given up": QUIET}, settings,
    )  # fmt: skip
    training = grown(lambda seen: [peer.training.resident for peer in seen.rounds]).values
    beside = [each - plain_value for each in training]
    rows.append(
        value_row("training process beside a plain loop", beside, MAPPING, {**settings, "plain": round(plain_value, 2)})
    )
    rows += kinds_rows(
        "training process, in rounds", lambda seen: trainings(seen.rounds), grown, {"mapping": MAPPING}, settings
    )
    rows += kinds_rows(
        "training process, between rounds", lambda seen: trainings(seen.quiet), grown, {"shared": MAPPING_RESIDENT}, settings
    )  # fmt: skip
    rows += kinds_rows(
        "host, writing a checkpoint", lambda seen: [_known(seen.host)], grown, {"resident": HOST}, settings
    )
    rows += joining_rows(small, large, settings)
    together = grown(lambda seen: [peer.together for peer in seen.rounds]).values
    rows.append(value_row("a peer's processes together", together, TOLD, settings))
    return rows


def joining_rows(small: Result, large: Result, settings: Mapping[str, object]) -> list[Row]:
    """A newcomer's daemon, from two sizes."""

    def grown(read: Read) -> Slope:
        return slope(small, large, read)

    until_trains = kinds_rows(
        "joining, until it trains",
        lambda seen: [_known(seen.joined)],
        grown,
        {"resident, without the mapping": JOIN},
        settings,
    )
    until_commit = kinds_rows(
        "joining, until its first commit", lambda seen: [_known(seen.joined_round)], grown, {}, settings
    )
    return [*until_trains, *until_commit]


def _known(peaks: Peaks | None) -> Peaks:
    if peaks is None:
        raise ValueError("expected a run that was watched in all its parts")
    return peaks


def process_rows(result: Result, plain: int, settings: Mapping[str, object]) -> list[Row]:
    """Whole processes at one size, beside a plain loop of the same model."""
    seen, values = result.seen, f"{result.num_values / 1e6:.1f}M values"
    about = {**settings, "values": result.num_values, "commit_s": round(seen.commit_s, 2)}
    whole: dict[str, tuple[list[int], float | None]] = {
        "training process": ([peer.training.resident for peer in seen.rounds], MOST_OF_TRAINING),
        "daemon": ([peer.daemon.resident for peer in seen.rounds], None),
        "together": ([peer.together for peer in seen.rounds], None),
        "training process, start": ([training for _, training in seen.starts], None),
        "daemon, start": ([daemon for daemon, _ in seen.starts], None),
    }
    return [
        _process_row(f"{result.run.name}, {values}: {name}", found, plain, most, about)
        for name, (found, most) in whole.items()
    ]


def _process_row(
    metric: str, found: Sequence[int], plain: int, most: float | None, settings: Mapping[str, object]
) -> Row:
    worst = max(found)
    return Row(
        BENCH,
        metric,
        round(worst / MB, 1),
        "MB",
        round(plain / MB, 1),
        round(worst / plain, 3),
        "" if most is None else f"<= {most:g} x",
        None if most is None else worst <= most * plain,
        len(found),
        {"best": round(min(found) / MB, 1), "worst": round(worst / MB, 1)},
        settings,
    )


def write_row(result: Result, settings: Mapping[str, object]) -> Row:
    """Bytes that a commit writes to the disk, beside the encoding of one contribution."""
    encoding = update_bytes(result.run.codec, result.num_values, result.run.config.chunk_elements)
    values = [each / result.num_values for each in result.seen.writes]
    is_judged = result.run.codec == "int8" and not result.run.fragments and _tells_writes(result)
    ratio = max(result.seen.writes) / encoding
    return Row(
        BENCH,
        f"{result.run.name}, {result.num_values / 1e6:.1f}M values: written to disk at a commit",
        round(max(values), 2),
        "B/value",
        round(encoding / result.num_values, 3),
        round(ratio, 3),
        f"<= {MOST_WRITTEN:g} x the encoding" if is_judged else "",
        ratio <= MOST_WRITTEN if is_judged else None,
        len(values),
        {"best": round(min(values), 2), "worst": round(max(values), 2)},
        {**settings, "commits": result.run.commits, "on_disk": round(max(result.seen.on_disk) / result.num_values, 1)},
    )


def _tells_writes(result: Result) -> bool:
    """Whether the watched commits have as many states among them as the average."""
    config, commits = result.run.config, result.run.commits
    if commits < COMMITS_A_GENERATION:
        return False
    for num_values in unit_values(config):
        result_bytes = update_bytes(config.result_codec, num_values, config.chunk_elements)
        kept = num_kept_updates(num_values, result_bytes)
        spacing = generation_spacing(num_values, result_bytes, kept)
        if commits % spacing and spacing < RARE * commits:
            return False
    return True


def promise_rows(result: Result, settings: Mapping[str, object]) -> list[Row]:
    """A dry run's promises over the measured figures: never less, and at most a quarter more."""
    size = run_size(result.run.config)
    rows = [
        promise_row(
            f"{result.run.name}: a peer's memory", size.peer_bytes, [p.together for p in result.seen.rounds], settings
        )
    ]
    if _tells_writes(result):
        rows += commit_write_rows(result, settings)
    if result.seen.host is not None:
        host = [max(result.seen.host.resident, result.seen.host_start)]
        rows.append(promise_row("the host's memory", size.host_bytes, host, settings))
    return rows


def commit_write_rows(result: Result, settings: Mapping[str, object]) -> list[Row]:
    """Disk writes of a peer at a commit, and the promise of them."""
    written = [round(each) for each in result.seen.writes]
    promised = run_size(result.run.config).write_bytes
    return [
        write_row(result, settings),
        promise_row(f"{result.run.name}: disk writes of a commit", promised, written, settings),
    ]


def promise_row(name: str, promised: int, measured: Sequence[int], settings: Mapping[str, object]) -> Row:
    """Bytes that a dry run says, over what each trial took: never less, and at most a quarter more."""
    ratios = [promised / each for each in measured]
    return Row(
        BENCH,
        f"{name}: promised by the dry run, over measured",
        round(min(ratios), 3),
        "ratio",
        target=f"1 to {MOST_PROMISED:g}",
        met=min(ratios) >= 1.0 and max(ratios) <= MOST_PROMISED,
        trials=len(ratios),
        spread={"best": round(min(ratios), 3), "worst": round(max(ratios), 3)},
        settings={**settings, "promised": promised, "measured": max(measured)},
    )
