"""Builds the parts of a peer's rounds and training from the run's manifest.

Rules: R18, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import torch

from averaging.codecs import Codec, codec_by_name
from averaging.data.packing.expert_shards import expert_shards
from averaging.data.shards import DatasetManifest, ShardCache
from averaging.data.sources.texts import Split
from averaging.data.start_weights import StartShard
from averaging.network.seams.interfaces import Storage
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.external_reducer import UnitShape
from averaging.rounds.head_vector import HeadVector
from averaging.rounds.lineage.past.held_milestones import HeldMilestones
from averaging.rounds.lineage.retention import update_bytes
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.lineage.unit_feedback import ErrorFeedback
from averaging.rounds.lineage.updates import UnitContext
from averaging.state.generations import Generations
from averaging.state.log_entries import LOG_NAME
from averaging.state.start_state import start_root, start_state
from averaging.state.state import STATE_BYTES_PER_VALUE, StateHeader, absent_state
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage, clear_unfinished
from peer.membership.incarnation import remember_unit
from peer.membership.joining import Membership, check_start
from peer.membership.kept_milestones import KeptMilestones
from peer.membership.saved_membership import run_folder
from peer.pipeline.stage.stage_channel import StagePlan
from peer.session.damaged_logs import has_begun_anew
from peer.session.restart_report import Restored, restored, units_sentence
from peer.settings.config import PeerConfig, whole_bytes
from peer.training.replica.compile_folder import COMPILE_FOLDER
from peer.training.replica.moments import MOMENTS_NAME, MOST_COMMITS_OLD
from peer.training.training_plan import MachinePlan, TextPlan, TrainingPlan
from protocol.errors import LocalProtocolError
from protocol.estimates.unit_disk import Occasion
from protocol.identity.identity import Verifier
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.messages.messages import Member
from protocol.rounds.messages.record import OuterStep
from protocol.rounds.messages.wire import genesis_id
from protocol.rounds.schedule.stagger import UNSTAGGERED, Stagger
from protocol.rounds.schedule.target import RoundTarget
from protocol.rounds.state import RoundConfig
from protocol.run.manifest import RunConfig
from protocol.tensors.expert_schema import expert_of
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema

log = structlog.get_logger()

MIN_LONE_PATIENCE_S: Final = 60.0
"""After the longest round interval without a quorum, and at least this long, the live peers commit alone (R18)."""


async def open_chains(
    folder: Path,
    membership: Membership,
    start: bytes,
    verifier: Verifier,
    me: PeerId,
    restarted: Callable[[str], None],
    given: Sequence[StartShard] = (),
    experts: Sequence[int] = (),
    milestones: HeldMilestones | None = None,
) -> tuple[UnitChain, ...]:
    """Open the lineages and states of all units held here from `folder`, the spine's first. `given`: shards of the run's initial
    weights, if any. `experts`: the experts that this peer holds. `restarted` receives one sentence about the state found on disk.
    `milestones`: those that the host signed.

    Raises:
        VersionError: the run began with another model or state than this machine computes. StorageError: a damaged folder.
    """
    manifest, offload = membership.manifest, ThreadOffload()
    storages = dict[UnitName, FileStorage]()
    held = {schema.unit: schema for schema in manifest.units_held(experts).schemas}
    for unit in held:
        await offload.run(partial(remember_unit, folder, unit))
        await offload.run(partial(clear_unfinished, folder / unit))
        storages[unit] = FileStorage(folder / unit, offload)
    logs = {unit: UnitLog(storage) for unit, storage in storages.items()}
    # Exclude logs that were set aside. A move of all units must not start a log, because the records before it are lost.
    begun = {unit: kept for unit, kept in logs.items() if not has_begun_anew(folder / unit)}
    spine = next(iter(manifest.unit_schemas()))
    if spine not in held:  # the spine is only followed here, by its records
        begun[spine] = UnitLog(FileStorage(folder / spine, offload))
    await HeadVector(FileStorage(folder, offload)).finish(begun)
    chains: list[UnitChain] = []
    found: dict[UnitName, Restored | None] = {}
    for unit, schema in held.items():
        was_here = (folder / unit / LOG_NAME).exists()
        tools = _unit_tools(membership, schema, storages[unit], verifier, me, logs[unit])
        tools = replace(tools, milestones=milestones)
        chain = await _open_chain(tools, schema, membership, start, given)
        # An expert may have been taken up just now. Any other unit must have had state on a disk that was used before.
        if was_here or not _is_expert(unit, manifest.config):
            found[unit] = _found(chain) if was_here else None
        chains.append(chain)
    if any(found.values()):
        sentence = units_sentence(found)
        log.info("restarted", reason=sentence)
        restarted(sentence)
    return tuple(chains)


async def kept_milestones(folder: Path, membership: Membership, start: bytes, verifier: Verifier) -> KeptMilestones:
    """The host's milestones of the run that began with this start record, loaded from the run's folder."""
    host_public_key = bytes.fromhex(membership.manifest.host_public_key)
    held = HeldMilestones(SignatureCheck(verifier, membership.run_id), host_public_key, genesis_id(start))
    kept = KeptMilestones(folder, held, ThreadOffload())
    await kept.restore()
    return kept


async def _open_chain(
    tools: UnitContext, schema: TensorSchema, membership: Membership, start: bytes, given: Sequence[StartShard]
) -> UnitChain:
    """The lineage and the state of one unit. Raises as `open_chains`."""
    model, seed = membership.manifest.model_schema, membership.manifest.config.run.seed
    check_start(start, schema, await tools.offload.run(partial(start_root, schema, tools.grid, seed, given, model)))
    make = partial(start_state, schema, seed, genesis_id(start), given, model)
    header = StateHeader(schema.unit, genesis_id(start), 0, 0)
    chain = UnitChain(tools, start, absent_state(header, schema.num_elements), make)
    await chain.restore()
    if tools.generations.last_load.problems:
        await chain.keep(Occasion.WANTED)  # damaged files are gone: keep a good copy before the next start needs one
    return chain


def _unit_tools(
    membership: Membership, schema: TensorSchema, storage: Storage, verifier: Verifier, me: PeerId, unit_log: UnitLog
) -> UnitContext:
    config, offload = membership.manifest.config, ThreadOffload()
    numbers, grid = config.round, ChunkGrid(schema.num_elements, config.chunk_elements)
    feedback = ErrorFeedback(me, numbers.feedback, grid, storage, offload) if numbers.feedback else None
    return UnitContext(
        membership.run_id,
        schema.unit,
        verifier,
        codec_by_name(numbers.codec),
        grid,
        offload,
        unit_log,
        Generations(storage, grid, offload),
        feedback,
        result_codec(config),
    )


def _is_expert(unit: UnitName, config: RunConfig) -> bool:
    return config.mixture is not None and expert_of(unit, config.mixture) is not None


def _found(chain: UnitChain) -> Restored:
    loaded = chain.tools.generations.last_load
    return restored(chain.tree, chain.head.commit, num_damaged=len(loaded.problems), generation_index=loaded.index)


def whole_anchor(chains: Sequence[UnitChain]) -> torch.Tensor:
    """The anchors of all units, concatenated, (N,) float32, before their rounds begin. With one unit its own tensor, not a copy."""
    anchors = [chain.state.anchor_N for chain in chains]
    return anchors[0] if len(anchors) == 1 else torch.cat(anchors)


async def read_anchors(chains: Sequence[UnitChain], commit: CommitId, rooms: Sequence[torch.Tensor]) -> None:
    """Copy the anchors of all units into these rooms, (N,) float32 each, while rounds go on.

    Raises:
        LocalProtocolError: the first unit does not stand at `commit` any more, or a state is of no use.
    """
    for chain, room_N in zip(chains, rooms, strict=True):
        stands_at = await chain.held.copy_anchor(room_N, chain.tools.offload)
        if chain is chains[0] and stands_at != commit:
            raise LocalProtocolError("another commit, which came before there was room", "the commit to be evaluated")


def result_codec(config: RunConfig) -> Codec | None:
    """The codec of the run's results; None if they use the codec of contributions."""
    name = config.result_codec
    return codec_by_name(name) if name != config.round.codec else None


def unit_shapes(membership: Membership) -> dict[UnitName, UnitShape]:
    """The shapes of all units of the run, as an external reducer needs them."""
    config, numbers = membership.manifest.config, membership.manifest.config.round
    codec, results = codec_by_name(numbers.codec), result_codec(config)
    schemas = membership.manifest.unit_schemas()
    return {
        unit: UnitShape(
            codec,
            ChunkGrid(schema.num_elements, config.chunk_elements),
            numbers.longest_interval_s,
            results,
            numbers.sums,
        )
        for unit, schema in schemas.items()
    }


def stage_plan(own: PeerConfig, membership: Membership, cache: ShardCache, stage: int) -> StagePlan:
    """The plan of the training process of one stage."""
    config, dataset = membership.manifest.config, membership.dataset
    if config.pipeline is None or config.stages is None:
        raise LocalProtocolError("a stage of a run without any", "a pipeline run")
    reads_text = config.stages.is_first(stage) or config.stages.is_last(stage)
    return StagePlan(
        run_id=membership.run_id.hex(),
        model=config.model,
        pipeline=config.pipeline,
        inner=config.inner,
        stage=stage,
        seed=config.run.seed,
        total_tokens=config.run.total_tokens,
        train_shards=tuple(cache.path(entry.sha256) for entry in dataset.part("train") if reads_text),
        heldout_shards=tuple(cache.path(entry.sha256) for entry in dataset.part("heldout") if reads_text),
        token_bytes=dataset.token_bytes,
        has_counts=dataset.form.has_counts,
        train_spans=dataset.source_spans("train", config.data.weights),
        heldout_spans=dataset.source_spans("heldout", config.data.weights),
        train_bytes_per_token=dataset.mixed_bytes_per_token("train", config.data.weights),
        heldout_bytes_per_token=dataset.mixed_bytes_per_token("heldout", config.data.weights),
        **_fields(machine_plan(own, membership)),
    )


def training_plan(
    own: PeerConfig,
    me: PeerId,
    membership: Membership,
    text: TextPlan,
    chains: Sequence[UnitChain],
    experts: tuple[int, ...] = (),
    *,
    is_paused: bool,
) -> TrainingPlan:
    """The plan of the training process on this text, from this peer's last data position."""
    config = membership.manifest.config
    return TrainingPlan(
        **_fields(text),
        **_fields(machine_plan(own, membership)),
        model=config.model,
        inner=config.inner,
        seed=config.run.seed,
        peer=me,
        total_tokens=config.run.total_tokens,
        max_memory_bytes=whole_bytes(own.max_memory_gb),
        is_paused=is_paused,
        first_step=max(chain.data_position() for chain in chains),
        num_fragments=config.num_fragments,
        adapter=config.adapter_config,
        mixture=config.mixture,
        experts=experts,
    )


def machine_plan(own: PeerConfig, membership: Membership) -> MachinePlan:
    """The owner's part of a training process's plan."""
    return MachinePlan(
        device=own.device,
        num_threads=own.num_threads,
        max_gpu_memory_bytes=whole_bytes(own.max_gpu_memory_gb),
        slowdown=own.slowdown,
        wishes=own.wishes,
        moments_file=run_folder(own.state_dir.absolute(), membership.run_id) / MOMENTS_NAME,
        moments_within_tokens=MOST_COMMITS_OLD * membership.manifest.config.round.target_tokens,
        compile_folder=own.state_dir / COMPILE_FOLDER,
    )


def _fields(plan: TextPlan | MachinePlan) -> dict[str, Any]:
    """The values of a part of a plan, as they are. The whole plan checks them again."""
    return {name: getattr(plan, name) for name in type(plan).model_fields}


def text_plan(
    dataset: DatasetManifest, cache: ShardCache, experts: Sequence[int] = (), weights: Sequence[float] = (1.0,)
) -> TextPlan:
    """The text of a data set that a holder of these experts reads. `weights` are those of a mixture's sources."""

    def of_experts(split: Split) -> tuple[tuple[Path, ...], ...]:
        """The text of each expert held here; empty if the data set was not packed for experts."""
        if dataset.router is None:
            return ()
        return tuple(
            tuple(cache.path(entry.sha256) for entry in expert_shards(dataset, expert, split)) for expert in experts
        )

    # The first expert held here is evaluated on prose that was routed to it. Text of other experts is not on this disk.
    first = experts[0] if experts and dataset.router is not None else None
    return TextPlan(
        train_shards=tuple(cache.path(entry.sha256) for entry in dataset.part("train")),
        heldout_shards=tuple(cache.path(entry.sha256) for entry in dataset.part("heldout")),
        prose_shards=tuple(cache.path(entry.sha256) for entry in dataset.part("prose", first)),
        token_bytes=dataset.token_bytes,
        base_shards=tuple(cache.path(entry.sha256) for entry in dataset.part("base")),
        has_counts=dataset.form.has_counts,
        has_starts=dataset.form.has_starts,
        train_spans=dataset.source_spans("train", weights),
        heldout_spans=dataset.source_spans("heldout", weights),
        train_bytes_per_token=dataset.mixed_bytes_per_token("train", weights),
        heldout_bytes_per_token=dataset.mixed_bytes_per_token("heldout", weights),
        prose_bytes_per_token=dataset.bytes_per_token("prose", first),
        expert_shards=of_experts("train"),
        expert_heldout_shards=of_experts("heldout"),
        expert_heldout_bytes_per_token=tuple(dataset.bytes_per_token("heldout", expert) for expert in experts)
        if dataset.router is not None
        else (),
    )


def replay_at_most(results: Codec, grid: ChunkGrid) -> int:
    """The number of missed commits up to which a replay moves fewer bytes than a whole state and the commit that attests it
    (R24).
    """
    return 1 + STATE_BYTES_PER_VALUE * grid.num_elements // update_bytes(results, grid)


def unit_round_target(config: RunConfig, unit: UnitName, units: Sequence[UnitName]) -> tuple[RoundTarget, Stagger]:
    """The target in ready tokens of a unit's rounds, and their offset from other units' rounds.

    Each token belongs to one expert. An expert's rounds take its share of the trunk's target, so they come as often as the trunk's.
    They need no offset from each other, because one expert is only a part of the bytes of a whole round.
    """
    mixture = config.mixture
    if config.stages is not None:
        return config.round_target, UNSTAGGERED
    if mixture is None:
        return config.round_target, Stagger(units.index(unit), len(units))
    if expert_of(unit, mixture) is None:
        return config.round_target, UNSTAGGERED
    # The start record names the trunk's target. An expert's first round is due at its share of it, like all later ones.
    return RoundTarget(config.round.target_tokens // mixture.num_experts), Stagger(0, mixture.num_experts)


def round_config(
    membership: Membership, me: Member, verifier: Verifier, unit: UnitName, *, is_inbound_reachable: bool
) -> RoundConfig:
    """The round configuration of one unit of the run for one member."""
    config, schemas = membership.manifest.config, membership.manifest.unit_schemas()
    results, schema = result_codec(config), schemas[unit]
    target, stagger = unit_round_target(config, unit, tuple(schemas))
    grid = ChunkGrid(schema.num_elements, config.chunk_elements)
    return RoundConfig(
        run_id=membership.run_id,
        unit=unit,
        me=me,
        verifier=verifier,
        num_chunks=grid.num_chunks,
        codec=config.round.codec,
        outer=OuterStep(config.outer.kind, config.outer.learning_rate, config.outer.momentum),
        target=target,
        min_members=1,  # the remaining members go on, however few
        max_members=config.run.max_members,
        longest_interval_s=config.round.longest_interval_s,
        replay_at_most=replay_at_most(results or codec_by_name(config.round.codec), grid),
        lone_patience_s=max(MIN_LONE_PATIENCE_S, config.round.longest_interval_s),
        total_tokens=config.run.total_tokens,
        is_inbound_reachable=is_inbound_reachable,
        result_codec=results.name if results is not None else "",
        spine=next(iter(schemas)) if len(schemas) > 1 else None,
        is_in_step=config.stages is not None,
        stagger=stagger,
        momentum_from_tokens=config.momentum_from_tokens,
        sums=config.round.sums,
    )
