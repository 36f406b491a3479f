"""Memory, disk and traffic that a run needs of a machine, from the numbers in its run.toml (traffic.py has the bytes of a round).
Estimates, pure; every formula cites its source.

Rules: R5 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from protocol.estimates.unit_disk import (
    STATE_BYTES_PER_PARAMETER,
    commit_write_bytes,
    feedback_disk_bytes,
    feedback_write_bytes,
    replay_at_most,
    unit_disk_bytes,
)
from protocol.kinds.outer_table import OUTER_STEPS
from protocol.memory_costs import HOST_BASE_BYTES, HOST_BYTES, KEPT_UNIT_BYTES, MOMENTUM_BYTES
from protocol.pipeline.placement.peer_memory import peer_memory_bytes
from protocol.run.traffic import update_bytes
from protocol.tensors.adapter_schema import BFLOAT16_BYTES, base_bytes
from protocol.tensors.model_config import model_schema
from protocol.tensors.model_units import model_units

if TYPE_CHECKING:
    from protocol.run.manifest import RunConfig

FLOAT32_BYTES: Final = 4
SECONDS_PER_DAY: Final = 86_400

LEDGER_BYTES_PER_ROUND: Final = 1500
"""Measured: a commit's row and three points of the loss curves, with their index entries and checksums
(coordinator/ledger/ledger.py).
"""

LEDGER_BYTES_PER_MEMBER_AND_ROUND: Final = 500
"""Measured: one member's part of the record and its signed ack, in a certificate that everybody acknowledged."""


@dataclass(frozen=True, slots=True)
class RunSize:
    """The numbers of a run that follow from its run.toml.

    Attributes:
        num_parameters: that the run trains: of the model with all experts, if it has any, or of its adapter.
        held_parameters: the most that a peer holds: fewer than all where there are experts.
        state_bytes: of one state of the whole model, as it is written as a checkpoint.
        update_bytes: of one encoded delta of a peer's parameters.
        result_bytes: of one encoded mean of them.
        slow_rounds_per_day: as many rounds as the longest interval makes in a day.
        fast_tokens_per_s: a swarm that trains more than this reaches the target before the longest interval, so it has more rounds.
        disk_bytes: the most that a peer keeps of the run, without its data and the log of the rounds.
        write_bytes: the average that a peer writes to its disk in a round of all its units, without its log and without data.
        peer_bytes: of memory of a peer that holds the most and trains on the CPU.
        host_bytes: of memory of the host.
        fast_rounds: of the whole run, for such a swarm; a slower one needs more.
    """

    num_parameters: int
    held_parameters: int
    state_bytes: int
    update_bytes: int
    result_bytes: int
    slow_rounds_per_day: int
    fast_tokens_per_s: float
    fast_rounds: int
    disk_bytes: int
    write_bytes: int
    peer_bytes: int
    host_bytes: int


def run_size(config: RunConfig) -> RunSize:
    """The size of a run, from its model, codec and cadence: a round is due at the target tokens or the longest interval (R5)."""
    num_parameters, held, section = config.num_elements, config.held_elements, config.round
    result_bytes = update_bytes(config.result_codec, held, config.chunk_elements)
    feedback_bytes = feedback_disk_bytes(held, config.chunk_elements) if section.feedback > 0 else 0
    has_momentum = OUTER_STEPS[config.outer.kind].state_vectors > 0
    return RunSize(
        num_parameters=num_parameters,
        held_parameters=held,
        state_bytes=STATE_BYTES_PER_PARAMETER * num_parameters,
        update_bytes=update_bytes(section.codec, held, config.chunk_elements),
        result_bytes=result_bytes,
        slow_rounds_per_day=int(SECONDS_PER_DAY / section.longest_interval_s),
        fast_tokens_per_s=section.target_tokens / section.longest_interval_s,
        fast_rounds=config.round_target.num_rounds(config.run.total_tokens, config.run.min_members),
        disk_bytes=unit_disk_bytes(held, result_bytes, feedback_bytes),
        write_bytes=_write_bytes(config),
        peer_bytes=peer_memory_bytes(
            held,
            has_feedback=section.feedback > 0,
            has_momentum=has_momentum,
            has_fragments=config.num_fragments > 0,
            has_tasks=bool(config.evaluate),
        )
        + (base_bytes(config.model, config.adapter.config) if config.adapter is not None else 0),
        host_bytes=host_memory_bytes(num_parameters, _kept_parameters(config), has_momentum=has_momentum),
    )


def weights_bytes(config: RunConfig) -> int:
    """Bytes of a peer's data that are weights: of a frozen base, or of what it holds of the model that the run begins with."""
    if config.adapter is not None:
        return BFLOAT16_BYTES * config.base_elements
    return FLOAT32_BYTES * config.held_elements if config.run.start_from else 0


def checkpoint_fetch_bytes(config: RunConfig) -> int:
    """Bytes that the host fetches for a checkpoint: a state, or the results since the one before."""
    if _is_replayed(config):
        result_bytes = update_bytes(config.result_codec, config.held_elements, config.chunk_elements)
        return result_bytes * config.checkpoint.every_rounds
    return STATE_BYTES_PER_PARAMETER * config.num_elements


def _is_replayed(config: RunConfig) -> bool:
    """Whether the host makes a checkpoint from the one before and the results since (coordinator/checkpoints/state_fetcher.py)."""
    if config.experts or config.num_fragments or config.pipeline:
        return False
    result_bytes = update_bytes(config.result_codec, config.held_elements, config.chunk_elements)
    return config.checkpoint.every_rounds <= replay_at_most(config.held_elements, result_bytes)


def _write_bytes(config: RunConfig) -> int:
    num_bytes, chunk = 0, config.chunk_elements
    asked_every = 0 if _is_replayed(config) else config.checkpoint.every_rounds
    for num_values in unit_values(config):
        result_bytes = update_bytes(config.result_codec, num_values, chunk)
        num_bytes += commit_write_bytes(num_values, result_bytes, asked_every)
        num_bytes += feedback_write_bytes(num_values, chunk) if config.round.feedback > 0 else 0
    return num_bytes


def unit_values(config: RunConfig) -> tuple[int, ...]:
    """Values of each unit of a peer that holds the most."""
    if config.experts:
        trunk, expert = model_schema(config.model).num_elements, config.experts.expert_elements(config.model)
        return (trunk, *[expert] * config.experts.holdings)
    if config.num_fragments:
        return tuple(schema.num_elements for schema in model_units(config.model, config.num_fragments).schemas)
    return (config.held_elements,)


def _kept_parameters(config: RunConfig) -> int:
    """Of the largest unit of which the host keeps a copy of its own; 0 where all peers hold the whole model."""
    if config.experts is not None:
        return config.experts.expert_elements(config.model)
    return config.held_elements if config.pipeline is not None else 0


def host_memory_bytes(num_parameters: int, kept_parameters: int = 0, *, has_momentum: bool = True) -> int:
    """Memory of the host while it writes a checkpoint and renews its copy of a unit of `kept_parameters`. `has_momentum`: whether the
    outer step keeps one.
    """
    of_state = HOST_BYTES + MOMENTUM_BYTES * has_momentum
    of_units = KEPT_UNIT_BYTES * kept_parameters
    return HOST_BASE_BYTES + of_state * num_parameters + of_units


def ledger_bytes(num_rounds: int, num_members: int) -> int:
    """Bytes of the host's ledger after `num_rounds`; nothing of it is ever removed."""
    return num_rounds * (LEDGER_BYTES_PER_ROUND + LEDGER_BYTES_PER_MEMBER_AND_ROUND * num_members)


def packed_bytes(text_bytes: int, vocab_size: int) -> int:
    """The most bytes of packed data: a token for every byte of text, of 2 bytes or, for a vocabulary above 65,536, of 4
    (averaging/data/packing/packing.py).
    """
    return text_bytes * (2 if vocab_size <= 1 << 16 else 4)
