"""The run's manifest: `run.toml` as the host writes it, and the signed canonical bytes that every peer agrees on.

TOML -> validated `RunConfig` -> `RunManifest` (with the data set's id and the host's keys) -> canonical JSON -> signature. The
run's id is the hash of the canonical bytes, so two runs with one id have every number in common.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from protocol.errors import ConfigError, RemoteProtocolError, VersionError
from protocol.grids import known_grid
from protocol.identity.envelope import NEVER_MS, open_envelope, seal
from protocol.identity.identity import Signer, Verifier
from protocol.ids import PROTOCOL_VERSION, READABLE_VERSIONS, RunId, UnitName
from protocol.kinds.codec_table import leaves_out
from protocol.plain_file import check_plain_file
from protocol.rounds.schedule.target import RoundTarget
from protocol.run.adapter_section import AdapterSection, adapter_contradiction
from protocol.run.data_section import DataSection, data_contradiction
from protocol.run.default_run import default_toml
from protocol.run.evaluate_section import EvaluateSection, tasks_problem
from protocol.run.experts_section import ExpertsSection, RunNumbers, Shards, expert_contradiction
from protocol.run.host_sections import AdmissionSection, CheckpointSection, door_problem, gate_problem, with_open_door
from protocol.run.page_section import NO_WORDS, PageSection
from protocol.run.pipeline_section import PipelineSection, pipeline_contradiction
from protocol.run.round_section import RoundSection
from protocol.run.round_size_rules import PacingNumbers
from protocol.run.round_size_rules import contradiction as pacing_contradiction
from protocol.run.section import Count, Section, Shaped
from protocol.run.streaming_rules import DEFAULT_DELAY_STEPS, StreamingNumbers, contradiction
from protocol.run.traffic import LinkNumbers, needed_mbit_per_s, round_bytes, too_slow, update_bytes
from protocol.run.training_sections import InnerSection, OuterSection
from protocol.run.validation_text import explained
from protocol.tensors.adapter_schema import AdapterConfig, adapter_schema
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_config import model_schema
from protocol.tensors.model_families import ModelSection
from protocol.tensors.model_units import ModelUnits, default_fragments, model_units
from protocol.tensors.round_defaults import default_chunk_elements, sparse_result_codec
from protocol.tensors.stage_schema import StageMap, stage_schema
from protocol.tensors.tensor_schema import TensorSchema

MANIFEST_DOMAIN: Final = "potluck run"
_ID_DOMAIN: Final = b"potluck manifest 1"
_NO_RUN: Final = bytes(32)
"""A manifest's envelope is signed before the run has an id."""

Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

MAX_RUN_TOML_BYTES: Final = 1 << 20
"""`potluck init` writes about 2,000 bytes. A much longer file is of another kind, and is refused before it is read to its end."""

_SECTIONS_OF_SOME: Final = ("experts", "pipeline", "adapter", "evaluate")
"""Sections that a manifest has only where the run has them."""

_FIRST_RUN_KEYS: Final = frozenset(["name", "seed", "total_tokens", "min_members", "max_members"])
"""Keys of the run section that every manifest has."""


class RunSection(Section):
    """The name, length and kind of the run."""

    name: Annotated[
        str,
        Shaped(
            r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}",
            "1 to 64 letters from a to z, digits, spaces, dots, dashes and underscores, beginning with a letter or digit",
        ),
    ]
    """Name of the run, which peers see."""

    seed: Annotated[int, Field(ge=0, le=(1 << 63) - 1)] = 1
    """Seed of the first values and of the order of the data."""

    total_tokens: Count
    """Tokens after which the run ends."""

    min_members: Annotated[int, Field(ge=1, le=64)] = 2
    """Peers that must be ready before the run starts. It goes on with fewer."""

    max_members: Annotated[int, Field(ge=1, le=64)] = 64
    """Most peers in one round of one unit. If more are here, they take turns: those that waited longest go first."""

    max_peers: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Most peers that the run takes at a time, over all units; at least max_members. As many as max_members if not given."""

    start_from: Annotated[str, Field(max_length=4096)] = ""
    """Folder of a checkpoint in the Hugging Face layout, relative to run.toml, with the sizes of [model]. The run begins with values
    from the seed if not given. `potluck init --from` writes both.
    """

    shards: Shards = "data"
    """The part of the model that a peer holds: "data", the whole model; "expert", a trunk and experts of [experts]; "pipeline", one
    stage of [pipeline].
    """

    grid: Annotated[str, Field(max_length=16), AfterValidator(known_grid)] = ""
    """Grid whose carbon counts for peers that name none: a country's two letters, "eu", "world", or grams of CO2 a kilowatt-hour. None
    if not given.
    """

    @property
    def most_peers(self) -> int:
        """Most peers that the run takes at a time."""
        return self.max_members if self.max_peers is None else self.max_peers

    @model_serializer(mode="wrap")
    def _leave_out_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self.used(handler(self), _FIRST_RUN_KEYS)


class RunConfig(Section):
    """The sections of `run.toml` that go into the manifest, validated."""

    run: RunSection
    model: ModelSection
    data: DataSection = DataSection()
    inner: InnerSection
    outer: OuterSection = OuterSection()
    round: RoundSection
    admission: AdmissionSection = AdmissionSection()
    checkpoint: CheckpointSection = CheckpointSection()
    experts: ExpertsSection | None = None
    pipeline: PipelineSection | None = None
    adapter: AdapterSection | None = None
    evaluate: Annotated[tuple[EvaluateSection, ...], Field(strict=False)] = ()

    @model_serializer(mode="wrap")
    def _leave_out_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        values: dict[str, dict[str, object] | None] = handler(self)
        if (section := values.get("round")) is not None:
            section["chunk_elements"] = self.chunk_elements  # peers agree on the number, not on how it is found
        return {n: value for n, value in values.items() if n not in _SECTIONS_OF_SOME or value}

    @model_validator(mode="after")
    def _check_together(self) -> RunConfig:
        if self.inner.batch_tokens % self.model.context_tokens:
            raise ValueError(
                f"inner.batch_tokens {self.inner.batch_tokens}: expected a multiple of model.context_tokens "
                f"{self.model.context_tokens}"
            )
        if self.run.min_members > self.run.max_members:
            raise ValueError(
                f"run.min_members {self.run.min_members}: expected at most run.max_members {self.run.max_members}"
            )
        if self.run.most_peers < self.run.max_members:
            raise ValueError(
                f"run.max_peers {self.run.most_peers}: expected at least run.max_members {self.run.max_members}"
            )
        if problem := pacing_contradiction(self._pacing()) or self._parts_problem():
            raise ValueError(problem)
        door = door_problem(self.admission, self.round.robust, self.run.shards)
        if problem := door or gate_problem(self.round, self.run.shards):
            raise ValueError(problem)
        if problem := tasks_problem(self.evaluate, self.run.shards, has_chats=self.data.has_chats):
            raise ValueError(problem)
        if self.num_fragments and (problem := contradiction(self._streaming())):
            raise ValueError(problem)
        if (link := self._link()) is not None and (problem := too_slow(link)):
            raise ValueError(problem)
        return self

    def _parts_problem(self) -> str:
        run, section = self.run, self.round
        numbers = RunNumbers(
            shards=run.shards,
            min_members=run.min_members,
            start_from=run.start_from,
            mode=section.mode,
            ramp_share=section.ramp_share,
            local_steps=section.local_steps,
            feedback=section.feedback,
            target_tokens=section.target_tokens,
        )
        return (
            adapter_contradiction(self.adapter, self.model, numbers)
            or expert_contradiction(self.experts, self.model, numbers)
            or pipeline_contradiction(self.pipeline, self.model, self.inner, numbers)
            or data_contradiction(self.data, run.shards)
        )

    def __eq__(self, other: object) -> bool:
        """Whether peers agree on it: the same numbers, whether the file said them or they were worked out."""
        return isinstance(other, RunConfig) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def stages(self) -> StageMap | None:
        """The stages of the model; None in a run without."""
        return self.pipeline.stage_map(self.model) if self.pipeline is not None else None

    @property
    def mixture(self) -> MixtureConfig | None:
        """The experts' numbers; None in a run without."""
        return self.experts.mixture if self.experts is not None else None

    @property
    def adapter_config(self) -> AdapterConfig | None:
        """The adapter's numbers; None in a run without."""
        return self.adapter.config if self.adapter is not None else None

    @property
    def base_elements(self) -> int:
        """Values of the frozen base; 0 in a run without."""
        return model_schema(self.model).num_elements if self.adapter is not None else 0

    @property
    def num_elements(self) -> int:
        """Values that the run trains: of the model with all experts, or of the adapter."""
        if self.adapter is not None:
            return adapter_schema(self.model, self.adapter.config).num_elements
        trunk, experts = model_schema(self.model).num_elements, self.experts
        return trunk + (experts.num_experts * experts.expert_elements(self.model) if experts is not None else 0)

    @property
    def held_elements(self) -> int:
        """The most values that a peer trains."""
        if self.adapter is not None:
            return self.num_elements
        if self.pipeline is not None:
            return self.pipeline.held_elements(self.model)
        return self.experts.held_elements(self.model) if self.experts else model_schema(self.model).num_elements

    @property
    def momentum_from_tokens(self) -> int:
        """Tokens of each member in a round below which the plain mean is taken; 0 where that never happens."""
        return (self.outer.momentum_from_steps or 0) * self.inner.batch_tokens

    @property
    def round_target(self) -> RoundTarget:
        """The rule for the ready tokens at which rounds are due."""
        section = self.round
        if not section.ramp_share and not section.local_steps:
            return RoundTarget(section.target_tokens)
        first_tokens = self.inner.batch_tokens * (section.first_local_steps or 1)
        # in parallel to training an exchange may fill a round; where training waits, it gets the share that training leaves
        exchange_share = 1.0 - section.target_utilisation if section.mode == "blocking" else section.target_utilisation
        return RoundTarget(
            section.target_tokens,
            first_tokens,
            section.ramp_share,
            exchange_share if section.local_steps else 0.0,
            section.mode == "blocking",
        )

    @property
    def num_fragments(self) -> int:
        """Fragments in which the layers are averaged; 0 where the whole model is averaged at once."""
        if self.round.mode != "streaming":
            return 0
        return self.round.fragments or default_fragments(self.model.num_layers)

    @property
    def delay_steps(self) -> int:
        """Local steps within which a fragment's commit must come to be mixed in; 0 where none is."""
        if self.round.alpha is None:
            return 0
        return DEFAULT_DELAY_STEPS if self.round.delay_steps is None else self.round.delay_steps

    @property
    def alpha(self) -> float | None:
        """Share of the local parameters that stays when a commit came within the delay; None where nothing is mixed."""
        return self.round.alpha

    @property
    def needed_mbit_per_s(self) -> float:
        """The slowest link, up and down, that carries a round of the run within its longest interval."""
        return needed_mbit_per_s(self._each_way_bytes, self.round.longest_interval_s)

    @property
    def _each_way_bytes(self) -> int:
        num_values, chunk = self.held_elements, self.chunk_elements
        up, down = (update_bytes(codec, num_values, chunk) for codec in (self.round.codec, self.result_codec))
        return max(round_bytes(up, down, self.run.max_members, reduces=True))

    def _link(self) -> LinkNumbers | None:
        section, size = self.round, self._each_way_bytes
        if section.link_mbit_per_s is None:
            return None
        kept = section.target_utilisation if section.local_steps else 0.0
        return LinkNumbers(section.link_mbit_per_s, size, section.longest_interval_s, kept, section.mode == "blocking")

    def _pacing(self) -> PacingNumbers:
        run, outer, step_tokens = self.run, self.outer, self.inner.batch_tokens
        members = run.min_members if self.pipeline is None else 1
        return PacingNumbers(
            self.round_target, run.total_tokens, step_tokens, members, outer.momentum, outer.momentum_from_steps
        )

    def _streaming(self) -> StreamingNumbers:
        return StreamingNumbers(
            self.model.num_layers,
            self.num_fragments,
            self.delay_steps,
            self.round.target_tokens,
            self.run.total_tokens,
            self.inner.batch_tokens,
            self.run.min_members,
        )

    @property
    def result_codec(self) -> str:
        """Codec of results: the round section's, or else that of contributions. For sparse contributions it is the codec with room
        for the values of all members: values that a result leaves out are lost (averaging/codecs/sparse.py).
        """
        if self.round.result_codec or not leaves_out(self.round.codec):
            return self.round.result_codec or self.round.codec
        return sparse_result_codec(self.run.max_members)

    @property
    def chunk_elements(self) -> int:
        """Values in a chunk: the round section's number, or else by what a peer averages at once; with experts, by all that it
        holds.
        """
        num_elements = self.held_elements // max(1, self.num_fragments)
        by_size = default_chunk_elements(num_elements, self.run.max_members, self.round.link_mbit_per_s)
        return self.round.chunk_elements or by_size


class RunFile(RunConfig):
    """`run.toml`, validated. Its words about the run are in no manifest, and two files that differ in them are equal."""

    page: Annotated[PageSection, Field(exclude=True)] = NO_WORDS


class RunManifest(Section):
    """Everything that two peers of a run must agree on."""

    config: RunConfig
    dataset_id: Hex32
    dataset_tokens: Count
    heldout_tokens: Count
    zlib_bits_per_byte: Annotated[float, Field(ge=0.0, le=64.0)]
    pairs_nats_per_byte: Annotated[float, Field(ge=0.0, le=64.0)]
    host_public_key: Hex32
    ca_certificate_sha256: Hex32
    protocol_version: int = PROTOCOL_VERSION

    def canonical_bytes(self) -> bytes:
        """Compact ASCII JSON with sorted keys; floats by their shortest exact form (RFC 8785 in spirit)."""
        return json.dumps(
            self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True
        ).encode()

    @property
    def run_id(self) -> RunId:
        """Fingerprint of the canonical bytes."""
        return RunId(sha256(_ID_DOMAIN + self.canonical_bytes()).digest())

    def unit_schemas(self) -> dict[UnitName, TensorSchema]:
        """The units of the run and their tensors, by name."""
        return {schema.unit: schema for schema in self.units.schemas}

    @property
    def units(self) -> ModelUnits:
        """All units of the run, the spine first."""
        return self.units_held(range(self.num_parts))

    @property
    def num_parts(self) -> int:
        """Number of experts or stages of the run, of which a peer holds some. 0 where everybody holds the whole model."""
        mixture, stages = self.config.mixture, self.config.stages
        if stages is not None:
            return stages.num_stages
        return mixture.num_experts if mixture is not None else 0

    @property
    def parts(self) -> tuple[UnitName, ...]:
        """The units that only some peers hold, by their numbers."""
        names = tuple(self.unit_schemas())
        return names[len(names) - self.num_parts :]

    @property
    def model_schema(self) -> TensorSchema:
        """All tensors that the run trains, in the model's own order. The first values of a unit follow from it."""
        is_own = self.config.mixture is None and self.config.adapter is None
        return model_schema(self.config.model) if is_own else self.units.whole

    def units_held(self, parts: Sequence[int]) -> ModelUnits:
        """The units of a peer that holds these experts or stages, in the order of its flat vector; in a run without either, all
        units.

        Raises:
            LocalProtocolError: a part that the run lacks, or one twice.
        """
        config, stages = self.config, self.config.stages
        if stages is not None:
            return ModelUnits(tuple(stage_schema(stages, stage) for stage in parts))
        if config.mixture is not None:
            return held_units(config.model, config.mixture, parts)
        if config.adapter is not None:
            return ModelUnits((adapter_schema(config.model, config.adapter.config),))
        return model_units(config.model, config.num_fragments)


def load_run_config(path: Path, *, is_open: bool = False) -> RunFile:
    """Read `run.toml`. `is_open`: as if it said that strangers are admitted.

    Raises:
        ConfigError: unreadable, not TOML, an unknown key, or a value that cannot work; one line names file, key and remedy.
    """
    check_plain_file(path, "a run.toml", "write one with: potluck init")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_RUN_TOML_BYTES + 1)
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except OSError as error:
        found = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(found, "a run.toml", "write one with: potluck init") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text: {error}", "a run.toml in UTF-8", "save it as UTF-8") from error
    if len(data) > MAX_RUN_TOML_BYTES:
        raise ConfigError(f"{path} is longer than {MAX_RUN_TOML_BYTES >> 20} MiB", "a run.toml", "check its kind")
    return parse_run_config(text, str(path), is_open=is_open)


def parse_run_config(text: str, name: str = "run.toml", *, is_open: bool = False) -> RunFile:
    """The configuration in a TOML text. Raises ConfigError as `load_run_config`."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{name} is no TOML: {error}", "key = value lines under [sections]", "mend that line"
        ) from error
    except ValueError as error:  # Python's limit on whole numbers from text
        raise ConfigError(
            f"{name} has a number of thousands of digits", "shorter numbers", "look for the longest line"
        ) from error
    try:
        return RunFile.model_validate(with_open_door(values) if is_open else values)
    except ValidationError as error:
        raise ConfigError(*explained(name, error)) from error


def sign_manifest(manifest: RunManifest, signer: Signer) -> bytes:
    """The manifest in the host's signed envelope."""
    return seal(signer, MANIFEST_DOMAIN, _NO_RUN, 0, NEVER_MS, manifest.canonical_bytes())


def open_manifest(data: bytes, *, verifier: Verifier, expected_run_id: RunId | None = None) -> RunManifest:
    """The manifest in a signed envelope.

    Raises:
        VersionError: made by another protocol version, or by a release with other keys.
        RemoteProtocolError: a bad signature, another signer than the manifest names, or another run than the invite names.
    """
    envelope = open_envelope(data, verifier=verifier, domain=MANIFEST_DOMAIN, run_id=_NO_RUN, now_unix_ms=None)
    version = _version_of(envelope.payload)
    if version not in READABLE_VERSIONS:
        raise VersionError(
            f"a run of protocol version {version}", f"version {PROTOCOL_VERSION}", "install the run's version"
        )
    try:
        manifest = RunManifest.model_validate_json(envelope.payload)
    except ValidationError as error:
        # Its signature is good, so the host meant it.
        found, expected, _ = explained("the run's manifest", error)
        raise VersionError(found, expected, "install the release that made the run") from error
    if bytes.fromhex(manifest.host_public_key) != envelope.public_key:
        raise RemoteProtocolError(
            "a manifest signed by another key than its host's", "the host's signature", "ask for a new invite"
        )
    if expected_run_id is not None and manifest.run_id != expected_run_id:
        raise RemoteProtocolError(
            f"the manifest of run {manifest.run_id[:4].hex()}",
            f"run {expected_run_id[:4].hex()} as in the invite",
            "ask for a new invite",
        )
    return manifest


def _version_of(payload: bytes) -> object:
    try:
        values = json.loads(payload)
    except ValueError as error:
        raise RemoteProtocolError("a manifest that is no JSON", "a run's manifest") from error
    return values.get("protocol_version") if isinstance(values, dict) else None


def default_run_toml(shards: Shards = "data") -> str:
    """The commented file that `potluck init` writes."""
    return default_toml(shards)
