"""The rows of the all-reduce benchmark: from trials to figures with targets. Ratios are judged by medians of interleaved trials."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from averaging.codecs import codec_by_name
from averaging.rounds.lineage.retention import update_bytes
from protocol.tensors.round_defaults import default_chunk_elements
from protocol.tensors.tensor_schema import ChunkGrid
from tests.benchmarks.allreduce_groups import Trial
from tests.benchmarks.results import Row

BENCH: Final = "allreduce"
WALL_SHARE: Final = 1 / 3
CPU_SHARE: Final = 1 / 4
LINK_SHARES: Final[Mapping[tuple[int, str], float]] = {(100, "int8"): 0.92, (100, "int4"): 0.90, (1000, "fp32"): 0.90}
GLOO_SHARES: Final[Mapping[tuple[int, str], float]] = {(100, "int8"): 1 / 3, (100, "int4"): 1 / 6}
BYTES_OVER_BOUND: Final = 1.05
IDLE_BYTES_PER_S: Final = 200.0


MAX_MEMBERS: Final = 64
"""The manifest's default."""


@dataclass(frozen=True)
class Setting:
    """One place to measure in: values, members, link (0 for loopback), and the codecs, the first one beside all baselines."""

    num_elements: int
    num_peers: int
    rate_mbit_s: int
    codecs: tuple[str, ...]
    has_baselines: bool = True
    compressions: tuple[str, ...] = ("fp16", "fp32")
    """Of hivemind's averagers, among the baselines."""

    is_apart: bool = False
    """The baselines' trials come first, all of them, then ours: memory does not hold all groups at once."""

    idle_s: float = 0.0
    """Before the last trial nothing is ordered for so long, to see what is said then."""

    num_warm_ups: int = 1
    """Rounds of each group that come first and are no trials."""

    @property
    def name(self) -> str:
        """For people."""
        link = f"{self.rate_mbit_s} Mbit/s" if self.rate_mbit_s else "loopback"
        return f"{link}, {self.num_elements / 1e6:g}M, N = {self.num_peers}"

    @property
    def chunk_elements(self) -> int:
        """As in a run whose host says nothing of it."""
        return default_chunk_elements(self.num_elements, MAX_MEMBERS, None)

    @property
    def is_main(self) -> bool:
        """Whether it is the one that time and processor targets are set for."""
        return (self.num_elements, self.num_peers, self.rate_mbit_s) == (25_000_000, 4, 0)

    def bound_bytes(self, codec: str) -> float:
        """2 (N-1)/N of the encoded vector: what a peer sends, and what it receives, at least."""
        encoded = update_bytes(codec_by_name(codec), ChunkGrid(self.num_elements, self.chunk_elements))
        return 2 * (self.num_peers - 1) / self.num_peers * encoded


@dataclass(frozen=True)
class Measured:
    """Trials by group in one setting beside one codec's swarm."""

    setting: Setting
    codec: str
    ours: Sequence[Trial]
    baselines: Mapping[str, Sequence[Trial]]
    relative_error: float | None = None
    failures: Sequence[str] = ()
    kill_rows: Sequence[Row] = ()
    first: Sequence[Trial] = ()
    """Our rounds before the trials."""


def _shown(value: float) -> float:
    """Four digits that count."""
    return float(f"{value:.4g}")


def median_row(
    metric: str, values: Sequence[float], unit: str, settings: Mapping[str, object], *, is_share: bool = False
) -> Row:
    """The median over the trials, with the best and the worst; of a share of what is to be had the largest is the best."""
    if not values:
        return Row(BENCH, metric, None, unit, settings=settings)
    best, worst = (max(values), min(values)) if is_share else (min(values), max(values))
    return Row(
        BENCH,
        metric,
        _shown(statistics.median(values)),
        unit,
        trials=len(values),
        spread={"best": _shown(best), "worst": _shown(worst)},
        settings=settings,
    )


def beside(row: Row, theirs: Sequence[float], limit: float | None) -> Row:
    """Beside the others' median; the target is a ratio."""
    if not theirs or row.value is None:
        return row
    baseline = statistics.median(theirs)
    ratio = _shown(row.value / baseline)
    if limit is None:
        return replace(row, baseline=_shown(baseline), ratio=ratio)
    target = f"ratio <= {limit:.3g}"
    return replace(row, baseline=_shown(baseline), ratio=ratio, target=target, met=ratio <= limit)


def _at_least(row: Row, limit: float | None) -> Row:
    if limit is None or row.value is None:
        return row
    return replace(row, target=f">= {limit:g}", met=row.value >= limit)


def rows_of(measured: Measured, settings: Mapping[str, object]) -> list[Row]:
    """All figures of one setting and codec."""
    setting, codec = measured.setting, measured.codec
    about = {**settings, "place": setting.name, "codec": codec, "failures": list(measured.failures)}
    name = f"{setting.name}, {codec}"
    is_judged = setting.is_main and codec == "int8"
    rows = [*_time_rows(measured, name, about, is_judged), *_link_rows(measured, name, about)]
    rows += [*_byte_rows(measured, name, about), *_part_rows(measured, name, about)]
    rows += _idle_rows(measured, name, about)
    rows.append(
        median_row(f"{name}: wall of the rounds before the trials", [t.wall_s for t in measured.first], "s", about)
    )
    errors = [] if measured.relative_error is None else [measured.relative_error]
    return [*rows, *measured.kill_rows, median_row(f"{name}: relative error against the exact mean", errors, "", about)]


def _time_rows(measured: Measured, name: str, about: Mapping[str, object], is_judged: bool) -> list[Row]:
    """Wall and processor time, which are judged, and both with what they leave out, which are not; each beside every other group."""
    ours, link, rows = measured.ours, measured.setting.rate_mbit_s, []
    wall = median_row(f"{name}: wall", [t.wall_s for t in ours], "s", about)
    cpu = median_row(f"{name}: processor time of all", [t.cpu_s for t in ours], "s", about)
    since_order = median_row(f"{name}: wall from the order on", [t.since_order_s for t in ours], "s", about)
    whole = median_row(
        f"{name}: processor time of all, state on disk included", [t.cpu_whole_s for t in ours], "s", about
    )
    for other, trials in measured.baselines.items():
        if not trials:
            continue
        is_target = is_judged and other == "hivemind fp16"
        wall_limit = WALL_SHARE if is_target else GLOO_SHARES.get((link, measured.codec)) if other == "gloo" else None
        walls_s, cpus_s = [t.wall_s for t in trials], [t.cpu_s for t in trials]
        rows += [
            beside(replace(row, metric=f"{row.metric} against {other}"), theirs, limit)
            for row, theirs, limit in (
                (wall, walls_s, wall_limit),
                (since_order, walls_s, None),
                (cpu, cpus_s, CPU_SHARE if is_target else None),
                (whole, cpus_s, None),
            )
        ]
        rows.append(median_row(f"{measured.setting.name}: {other}, wall", walls_s, "s", about))
    return rows or [wall, since_order, cpu, whole]


def _link_rows(measured: Measured, name: str, about: Mapping[str, object]) -> list[Row]:
    setting = measured.setting
    if not setting.rate_mbit_s:
        return []

    def shares(bound_bytes: float, trials: Sequence[Trial]) -> list[float]:
        bound_s = bound_bytes * 8 / (setting.rate_mbit_s * 1e6)
        return [bound_s / trial.wall_s for trial in trials]

    bound = setting.bound_bytes(measured.codec)
    own = median_row(f"{name}: share of the link's bound", shares(bound, measured.ours), "share", about, is_share=True)
    rows = [_at_least(own, LINK_SHARES.get((setting.rate_mbit_s, measured.codec)))]
    for other, trials in measured.baselines.items():
        bytes_a_value = 2 if other.endswith("fp16") else 4
        theirs = 2 * (setting.num_peers - 1) / setting.num_peers * bytes_a_value * setting.num_elements
        metric = f"{setting.name}: {other}, share of its bound"
        rows.append(median_row(metric, shares(theirs, trials), "share", about, is_share=True))
    return rows


def _byte_rows(measured: Measured, name: str, about: Mapping[str, object]) -> list[Row]:
    """Of all peers of a trial in the mean: who reduces a chunk more than others sends its result once more to each of them."""
    setting, bound = measured.setting, measured.setting.bound_bytes(measured.codec)

    def means(*keys: str) -> list[float]:
        reported = [
            [sum(each["spent"][key] for key in keys) / bound for each in trial.reported] for trial in measured.ours
        ]
        return [statistics.mean(each) for each in reported]

    rows = []
    for way in ("up", "down"):
        bulk, control = f"bulk_bytes_{way}", f"control_bytes_{way}"
        row = median_row(f"{name}: payload bytes {way} a peer over the bound", means(bulk, control), "ratio", about)
        met = row.value is not None and row.value <= BYTES_OVER_BOUND
        rows.append(replace(row, target=f"<= {BYTES_OVER_BOUND}", met=met))
        rows.append(median_row(f"{name}: bulk bytes {way} a peer over the bound", means(bulk), "ratio", about))
        rows.append(median_row(f"{name}: control bytes {way} a peer over the bound", means(control), "ratio", about))
        if setting.rate_mbit_s:
            wire = means(f"interface_{way}")
            rows.append(median_row(f"{name}: interface bytes {way} a peer over the bound", wire, "ratio", about))
    return [*rows, _direct_row(measured, name, about)]


def _direct_row(measured: Measured, name: str, about: Mapping[str, object]) -> Row:
    """How much of the bulk went from peer to peer over TLS, and not over libp2p."""
    bulk = [reported["spent"] for trial in measured.ours for reported in trial.reported]
    shares = [each["way_direct"] / max(1.0, each["way_direct"] + each["way_libp2p"]) for each in bulk]
    return median_row(f"{name}: share of bulk bytes that went direct", shares, "share", about, is_share=True)


def _idle_rows(measured: Measured, name: str, about: Mapping[str, object]) -> list[Row]:
    """Bytes that a peer sends and receives between two rounds, ours and all, where there was a long pause, in that alone."""
    if not measured.setting.idle_s:
        return []  # between trials the others use the same interfaces, and the host hears of each commit
    reported = [each["idle"] for trial in measured.ours for each in trial.reported if each["idle"] is not None]
    idle = [each for each in reported if each["at_s"] >= measured.setting.idle_s]
    if not idle:
        return []
    about = {**about, "seconds": statistics.median(each["at_s"] for each in idle)}
    to_peers = [_idle_bytes(each, "control", "bulk") for each in idle]
    to_host = [_idle_bytes(each, "host") for each in idle]
    ours = [a + b for a, b in zip(to_peers, to_host, strict=True)]
    what = f"{name}: idle bytes a peer, up and down"
    row = median_row(f"{what}: ours", ours, "B/s", about)
    met = max(ours) <= IDLE_BYTES_PER_S  # each peer's own budget: one in the middle says nothing of the others
    rows = [replace(row, target=f"<= {IDLE_BYTES_PER_S:g}", met=met)]
    rows.append(median_row(f"{what}: ours, to peers", to_peers, "B/s", about))
    rows.append(median_row(f"{what}: ours, to the host", to_host, "B/s", about))
    if measured.setting.rate_mbit_s:
        wire = [(each["interface_up"] + each["interface_down"]) / each["at_s"] for each in idle]
        rest = [a - b for a, b in zip(wire, ours, strict=True)]
        rows.append(median_row(f"{what}: all on its interface", wire, "B/s", about))
        rows.append(median_row(f"{what}: directory, libp2p, gRPC, TLS and TCP around ours", rest, "B/s", about))
    return rows


def _idle_bytes(idle: Mapping[str, float], *lanes: str) -> float:
    """Payload bytes a second, both ways, of these lanes."""
    return sum(idle[f"{lane}_bytes_{way}"] for lane in lanes for way in ("up", "down")) / idle["at_s"]


def _part_rows(measured: Measured, name: str, about: Mapping[str, object]) -> list[Row]:
    """The wall time that each step adds, and the use of processor time."""
    steps: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    for trial in measured.ours:
        for step, seconds in trial.parts_s.items():
            steps.setdefault(step, []).append(seconds)
        costs: dict[str, float] = {}
        for reported in trial.reported:
            spent = {key[4:-2]: value for key, value in reported["spent"].items() if key.startswith("cpu_")}
            for part, seconds in {**reported["offloaded_s"], **spent}.items():
                costs[part] = costs.get(part, 0.0) + seconds
        for part, seconds in costs.items():
            cpu.setdefault(part, []).append(seconds)
    rows = [median_row(f"{name}: until {step}", values, "s", about) for step, values in steps.items()]
    shown = sorted(cpu.items(), key=lambda item: -statistics.median(item[1]))
    return rows + [median_row(f"{name}: processor time, {part}", values, "s", about) for part, values in shown[:16]]
