"""The numbers of a manifest with which no round of a run could ever be committed, each with one that works. Pure.

A run that is open keeps its numbers: these checks are for a run.toml from which a run is to be opened. Contradictions within a
section, or between two of them, are refused where the sections are read (protocol/run/manifest.py).

Rules: R11 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from math import ceil
from typing import Final, NamedTuple

from protocol.estimates.estimates import unit_values
from protocol.kinds.boundary_table import BOUNDARY_CODECS
from protocol.pipeline.messages.lane_messages import MAX_PASSED_BYTES
from protocol.rounds.messages.bounds import MAX_MEMBERS, MAX_TOKENS
from protocol.run.manifest import RunConfig
from protocol.run.traffic import chunks_problem

MAX_UNITS: Final = MAX_MEMBERS
"""Units of one peer: its heartbeats name the head of each (protocol/rounds/messages/messages.py, Heartbeat)."""

MOST_TOTAL_TOKENS: Final = MAX_TOKENS // 2
"""Tokens of a run: the last round goes beyond the run's end, and its sum is still counted exactly."""

FASTEST_MBIT_PER_S: Final = 1e6
"""A link faster than this is named in no run.toml (`round.link_mbit_per_s`)."""

PARCEL_HEAD_BYTES: Final = 4096
"""Of what passes between two stages, beside the rows."""


class RoundProblem(NamedTuple):
    """Why no round could be committed: what was found, what was expected, what to do."""

    found: str
    expected: str
    remedy: str


def round_problem(config: RunConfig) -> RoundProblem | None:
    """The first number with which no round, or no join, of a run could succeed; None if all work."""
    return (
        _of_the_chunks(config)
        or _of_the_units(config)
        or _of_the_tokens(config)
        or _of_the_interval(config)
        or _of_the_micro_batches(config)
    )


def _of_the_chunks(config: RunConfig) -> RoundProblem | None:
    problem = chunks_problem(max(unit_values(config)), config.chunk_elements)
    remedy = "leave chunk_elements out of [round]: it is chosen by the size of the model"
    return None if problem is None else RoundProblem(*problem, remedy)


def _of_the_units(config: RunConfig) -> RoundProblem | None:
    """A peer reports on all its units at once, so one that has more of them can report on none."""
    num_units = len(unit_values(config))
    if num_units <= MAX_UNITS:
        return None
    why, most = f"peers average {num_units} units each, and a heartbeat names {MAX_UNITS}", MAX_UNITS - 1
    if config.experts is not None:
        found, remedy = f"experts.holdings is {config.experts.holdings}", "let more peers hold fewer experts each"
    else:
        found, remedy = f"round.fragments is {config.num_fragments}", f"write fragments = {most} into [round], or fewer"
    return RoundProblem(f"{found}: {why}", f"at most {most}", remedy)


def _of_the_tokens(config: RunConfig) -> RoundProblem | None:
    total = config.run.total_tokens
    if total <= MOST_TOTAL_TOKENS:
        return None
    found = f"run.total_tokens is {total}: records could not count the last rounds"
    return RoundProblem(found, f"at most {MOST_TOTAL_TOKENS}", "take fewer tokens")


def _of_the_interval(config: RunConfig) -> RoundProblem | None:
    """An exchange must end within the longest interval (R11). A link that the file names is checked when it is read."""
    interval_s, needed = config.round.longest_interval_s, config.needed_mbit_per_s
    if needed <= FASTEST_MBIT_PER_S:
        return None
    least_s = ceil(interval_s * needed / FASTEST_MBIT_PER_S)
    found = f"round.longest_interval_s is {interval_s:g}: a round would need links of {needed:g} Mbit/s"
    return RoundProblem(found, f"at least {least_s}", "let rounds last longer, or take a codec of fewer bits")


def _of_the_micro_batches(config: RunConfig) -> RoundProblem | None:
    """A micro-batch passes from stage to stage in one parcel."""
    pipeline, context = config.pipeline, config.model.context_tokens
    if pipeline is None or config.stages is None or config.stages.num_stages < 2:
        return None
    codecs = (pipeline.forward_codec, pipeline.backward_codec)
    row_bytes = max(BOUNDARY_CODECS[codec].row_bytes(config.model.dim) for codec in codecs)
    room, num_rows = MAX_PASSED_BYTES - PARCEL_HEAD_BYTES, config.inner.batch_tokens // pipeline.micro_batches
    if num_rows * row_bytes <= room:
        return None
    passes = f"{num_rows * row_bytes} bytes would pass between stages at once"
    num_sequences, most_sequences = config.inner.batch_tokens // context, room // row_bytes // context
    if not most_sequences:
        found = f"model.context_tokens is {context}: {passes}"
        return RoundProblem(found, f"at most {room // row_bytes}", "take a shorter context, or a codec of fewer bits")
    least = next(
        n for n in range(1, num_sequences + 1) if not num_sequences % n and num_sequences // n <= most_sequences
    )
    found = f"pipeline.micro_batches is {pipeline.micro_batches}: {passes}"
    return RoundProblem(found, f"at least {least}", "cut a step into more micro-batches")
