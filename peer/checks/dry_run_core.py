"""The estimates of `potluck join --dry-run` for this machine. Pure. Formulas are in protocol/estimates/estimates.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.errors import MachineError
from protocol.estimates.adapter_estimates import adapter_estimates
from protocol.estimates.dry_run import Estimate, disk_estimates, traffic_estimates
from protocol.estimates.estimates import run_size, weights_bytes
from protocol.estimates.pipeline_estimates import stage_estimates
from protocol.estimates.unit_disk import STATE_BYTES_PER_PARAMETER
from protocol.estimates.work_audits import audit_estimates
from protocol.memory_costs import PEER_BASE_BYTES
from protocol.pipeline.placement.cutting import stages_that_fit
from protocol.run.manifest import RunConfig
from protocol.tables import in_bytes, whole
from protocol.tensors.stage_schema import stage_unit

_UNKNOWN: Final = "unknown without the host"


@dataclass(frozen=True, slots=True)
class OfferedResources:
    """The settings that affect the estimates, in their own units. 0 GB of quota or memory means no limit."""

    cache_bytes: int
    no_listen: bool
    daily_quota_gb: float
    max_memory_bytes: int = 0
    audit_share: float = 1.0


def peer_estimates(run: RunConfig | None, data_bytes: int, offer: OfferedResources) -> tuple[Estimate, ...]:
    """The estimates for a run whose packed data has `data_bytes` bytes. None: the run is not known here."""
    if run is None:
        return (
            Estimate("model", _UNKNOWN),
            Estimate("memory", f"{_UNKNOWN}; {in_bytes(PEER_BASE_BYTES)} beside the model"),
            Estimate("disk", f"{_UNKNOWN}; beside it at most {in_bytes(offer.cache_bytes)} of data"),
            Estimate("traffic", _UNKNOWN),
            *_quota(offer),
        )
    size, weights = run_size(run), weights_bytes(run)
    data_kept_bytes = min(data_bytes, weights + offer.cache_bytes)
    return (
        Estimate("adapter" if run.adapter else "model", f"{whole(size.num_parameters)} parameters"),
        Estimate("memory", f"about {in_bytes(size.peer_bytes)}"),
        *(audit_estimates(run) if offer.audit_share else ()),
        *disk_estimates(run, f"{in_bytes(data_kept_bytes)} of data"),
        Estimate(
            "at the start",
            f"fetches a state of {in_bytes(STATE_BYTES_PER_PARAMETER * size.held_parameters)}, then data as it is needed",
        ),
        *adapter_estimates(run),
        *stage_estimates(run),
        *_stages_with_room(run, offer),
        *traffic_estimates(run, reduces=not offer.no_listen),
        *_quota(offer),
    )


def _stages_with_room(run: RunConfig, offer: OfferedResources) -> tuple[Estimate, ...]:
    """In a run of stages with a memory limit: the stages that this peer may hold. A join is refused if there are none."""
    if run.pipeline is None or run.stages is None or not offer.max_memory_bytes:
        return ()
    try:
        fitting = stages_that_fit(run.stages, run.pipeline.memory(run.model, run.inner), offer.max_memory_bytes)
    except MachineError as error:
        return (Estimate("room for", f"no stage, so a join is refused: {error.one_line()}"),)
    return (Estimate("room for", ", ".join(stage_unit(stage) for stage in fitting)),)


def _quota(offer: OfferedResources) -> tuple[Estimate, ...]:
    if not offer.daily_quota_gb:
        return ()
    return (Estimate("your quota", f"ends all that at {offer.daily_quota_gb:g} GB a day, up and down together"),)
