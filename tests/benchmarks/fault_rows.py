"""From trials to figures: suspicion, extra time, equal roots, one certificate, coming back; each judged by its worst trial."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tests.benchmarks.fault_trials import Fault, Trial
from tests.benchmarks.hivemind_kill import NUM_PEERS, HivemindTrial
from tests.benchmarks.points import POINTS
from tests.benchmarks.results import Row, always, at_most

BENCH: Final = "faults"
KILL_SUSPICION_S: Final = 0.5
"""After a reset, and after a goodbye."""

SILENCE_SUSPICION_S: Final = 2.5
EXTRA_S: Final = 3.0
ROUNDS_TO_COUNT: Final = 2
AT_POINTS: Final = "opener killed in its commit"

Settings = Mapping[str, object]


def fault_rows(
    trials: Sequence[Trial], calm_s: Sequence[float], hivemind: Sequence[HivemindTrial], settings: Settings
) -> list[Row]:
    """All figures of our own; `calm_s` are the times of undisturbed rounds of the same run."""
    rows = [at_most(BENCH, "undisturbed round", calm_s, None, settings)]
    usual_s = statistics.median(calm_s) if calm_s else 0.0
    kinds = dict.fromkeys(_kind(trial) for trial in trials)
    for kind in kinds:
        rows += _rows_of(kind, [t for t in trials if _kind(t) == kind], usual_s, settings)
    return [_beside(row, hivemind) for row in rows]


def _kind(trial: Trial) -> str:
    """Trials at a point of a commit are judged together."""
    return AT_POINTS if trial.fault.point is not None else trial.fault.name


def _rows_of(name: str, trials: Sequence[Trial], usual_s: float, common: Settings) -> list[Row]:
    fault = trials[0].fault
    settings = {**common, "victim_led": [t.was_opener for t in trials], "rounds": [t.index for t in trials]}
    rows = [] if fault.point or fault.means == "worker" else _suspicions(fault, trials, settings)
    if fault.point:
        settings["points"] = [str(t.fault.point) for t in trials]
        reached = [any(t.fault.point == point and t.is_at_point for t in trials) for point in POINTS]
        rows = [
            always(BENCH, f"{name}: each of the {len(POINTS)} points was reached", reached, settings),
            always(BENCH, f"{name}: the opener's disk shows the point", [t.is_at_point for t in trials], settings),
        ]
    rows += [
        _extra(name, trials, usual_s, settings),
        always(BENCH, f"{name}: survivors' state roots equal", [t.are_roots_equal for t in trials], settings),
        always(BENCH, f"{name}: one certificate a base, everybody's", [t.is_one_chain for t in trials], settings),
    ]
    if fault.heals:
        rows.append(_counted_again(fault, trials, settings))
    back = [t.back_s for t in trials if t.back_s is not None]
    rows.append(
        at_most(BENCH, f"{name}: until it is counted again", back, None, {**settings, "never": len(trials) - len(back)})
    )
    return rows


def _counted_again(fault: Fault, trials: Sequence[Trial], settings: Settings) -> Row:
    counted = [t.rounds_to_count is not None and t.rounds_to_count <= ROUNDS_TO_COUNT for t in trials]
    details = {**settings, "rounds_to_count": [t.rounds_to_count for t in trials]}
    row = always(BENCH, f"{fault.name}: counted again within {ROUNDS_TO_COUNT} rounds", counted, details)
    # after a cut the transport's own back-off comes first: no promise of ours
    return row if fault.means == "freeze" else replace(row, target="", met=None)


def _suspicions(fault: Fault, trials: Sequence[Trial], settings: Settings) -> list[Row]:
    """A p2pd that is back before anybody asked it is suspected by nobody, which is as good as at once."""
    limit_s = SILENCE_SUSPICION_S if fault.heals else KILL_SUSPICION_S
    seen = [list(trial.suspected_s.values()) for trial in trials if trial.suspected_s]
    details = {**settings, "trials_without_suspicion": len(trials) - len(seen)}
    does = "heard its goodbye" if fault.means == "leave" else "suspects it"
    return [
        at_most(BENCH, f"{fault.name}: the first survivor {does}", [min(s) for s in seen], limit_s, details),
        at_most(BENCH, f"{fault.name}: the last survivor {does}", [max(s) for s in seen], limit_s, details),
    ]


def _extra(name: str, trials: Sequence[Trial], usual_s: float, settings: Settings) -> Row:
    """A round that was never committed keeps no target, whatever the others did."""
    extra = [t.round_s - usual_s for t in trials if t.round_s is not None]
    lost = len(trials) - len(extra)
    details = {**settings, "each": [None if t.round_s is None else round(t.round_s - usual_s, 2) for t in trials]}
    row = at_most(BENCH, f"{name}: extra time of the round", extra, EXTRA_S, {**details, "never_committed": lost})
    return replace(row, met=False) if lost else row


def _beside(row: Row, hivemind: Sequence[HivemindTrial]) -> Row:
    """hivemind's figure where there is one."""
    if not hivemind or row.metric != "whole session killed: survivors' state roots equal":
        return row
    baseline = sum(trial.are_equal for trial in hivemind) / len(hivemind)
    return replace(row, baseline=baseline, ratio=row.value / baseline if row.value is not None and baseline else None)


def hivemind_rows(trials: Sequence[HivemindTrial], settings: Settings) -> list[Row]:
    """The other side's figures, without targets."""
    survivors = NUM_PEERS - 1
    details = {
        **settings,
        "returned": [t.num_returned for t in trials],
        "said_success": [t.num_successes for t in trials],
        "survivors": survivors,
    }
    name = "hivemind's averager, session killed"
    shares = {
        "all survivors returned within 30 s": [t.num_returned == survivors for t in trials],
        "survivors' vectors equal": [t.are_equal for t in trials],
        "all survivors reported success": [t.num_successes == survivors for t in trials],
    }
    rows = [
        replace(always(BENCH, f"{name}: {what}", outcomes, details), target="", met=None)
        for what, outcomes in shares.items()
    ]
    return [
        at_most(BENCH, f"{name}: until all returned, 30 s at most", [t.returned_s for t in trials], None, details),
        *rows,
    ]
