"""The estimates of `potluck host --dry-run`. Pure; the formulas are in protocol/estimates/estimates.py."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.estimates.adapter_estimates import adapter_estimates
from protocol.estimates.dry_run import Estimate, disk_estimates, round_estimates, traffic_estimates, turn_estimates
from protocol.estimates.estimates import (
    archive_bytes,
    checkpoint_fetch_bytes,
    ledger_bytes,
    packed_bytes,
    run_size,
)
from protocol.estimates.kept_checkpoints import KeptCheckpoints, kept_checkpoints
from protocol.estimates.pipeline_estimates import stage_estimates
from protocol.estimates.unit_disk import PARAMETER_BYTES, STATE_BYTES_PER_PARAMETER
from protocol.estimates.work_audits import audit_estimates
from protocol.rounds.lineage.lineage import MAX_DEPTH
from protocol.run.data_section import HUB_PREFIX
from protocol.run.manifest import RunConfig
from protocol.tables import in_bytes, several, whole


@dataclass(frozen=True, slots=True)
class Data:
    """The size of the run's data: of its files or, if `is_packed`, of its shards."""

    num_bytes: int
    is_packed: bool


def host_estimates(run: RunConfig, data: Data) -> tuple[Estimate, ...]:
    """The host's own needs, for the number of rounds of a swarm that is fast enough to reach the target tokens."""
    size, rules, members = run_size(run), run.checkpoint, run.run.max_members
    kept = kept_checkpoints(
        size.fast_rounds, every_rounds=rules.every_rounds, keep=rules.keep, keep_every=rules.keep_every
    )
    fetched_bytes = checkpoint_fetch_bytes(run) * size.slow_rounds_per_day // rules.every_rounds
    written_bytes = size.state_bytes * size.slow_rounds_per_day // rules.every_rounds
    old_bytes = size.state_bytes * PARAMETER_BYTES // STATE_BYTES_PER_PARAMETER
    kept_bytes, ledger = kept.whole * size.state_bytes + kept.old * old_bytes, ledger_bytes(size.fast_rounds, members)
    return (
        Estimate("adapter" if run.adapter else "model", f"{whole(size.num_parameters)} parameters"),
        *turn_estimates(run),
        *round_estimates(run),
        *adapter_estimates(run)[:1],
        Estimate("memory", f"about {in_bytes(size.host_bytes)}"),
        Estimate(
            "disk", f"checkpoints at most {in_bytes(kept_bytes)}: {_checkpoints(kept, size.state_bytes, old_bytes)}"
        ),
        Estimate("", f"ledger {in_bytes(ledger)}, with {members} peers in {whole(size.fast_rounds)} rounds"),
        *_archive(size.fast_rounds, members),
        Estimate("", f"data {_data(run, data)}"),
        Estimate("", f"writes {in_bytes(size.state_bytes)} a checkpoint, {in_bytes(written_bytes)} a day"),
        Estimate("a day", f"down {in_bytes(fetched_bytes)} for checkpoints, at a round every {_interval(run)};"),
        Estimate("", "up at most the data once for each peer; peers pass it on, too"),
    )


def each_peer_estimates(run: RunConfig) -> tuple[Estimate, ...]:
    """The needs of each peer that accepts inbound connections."""
    size = run_size(run)
    return (
        Estimate("memory", f"about {in_bytes(size.peer_bytes)}"),
        *audit_estimates(run),
        *disk_estimates(run, "its data"),
        *adapter_estimates(run)[1:],
        *stage_estimates(run),
        *traffic_estimates(run, reduces=True),
    )


def _archive(num_rounds: int, members: int) -> tuple[Estimate, ...]:
    num_bytes = archive_bytes(num_rounds, members)
    text = f"archive at most {in_bytes(num_bytes)}: certificates of all rounds but the newest {whole(MAX_DEPTH)}"
    return (Estimate("", text),) if num_bytes else ()


def _checkpoints(kept: KeptCheckpoints, whole_bytes: int, old_bytes: int) -> str:
    text = f"{whole(kept.whole)} of {in_bytes(whole_bytes)}"
    return f"{text}, {several(kept.old, 'old one')} of {in_bytes(old_bytes)}" if kept.old else text


def _interval(run: RunConfig) -> str:
    return f"{run.round.longest_interval_s:g} s"


def _data(run: RunConfig, data: Data) -> str:
    if data.is_packed:
        return f"{in_bytes(data.num_bytes)}, packed already"
    for part in run.data.parts:
        if part.dataset.startswith(HUB_PREFIX):
            return f"unknown until it is fetched: {part.dataset}"
    for part in run.data.parts:
        # compressed, or with other columns: the size of such a file says little about its text
        if part.source in ("parquet", "hf"):
            kind = "parquet" if part.source == "parquet" else "Arrow"
            return f"unknown until it is packed: {in_bytes(data.num_bytes)} of {kind} files"
    return (
        f"at most about {in_bytes(packed_bytes(data.num_bytes, run.model.vocab_size))}, from {in_bytes(data.num_bytes)}"
    )
