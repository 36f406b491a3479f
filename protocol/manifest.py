"""The run's manifest: `run.toml` as the host writes it, and the signed canonical bytes that every peer agrees on.

TOML -> validated `RunConfig` -> `RunManifest` (with the data set's id and the host's keys) -> canonical JSON -> signature. The
run's id is the hash of the canonical bytes, so two runs with one id have every number in common.
"""

from __future__ import annotations

import json
import re
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from protocol.decoder_schema import DecoderConfig
from protocol.envelope import NEVER_MS, open_envelope, seal
from protocol.errors import ConfigError, RemoteProtocolError, VersionError
from protocol.identity import Signer, Verifier
from protocol.ids import PROTOCOL_VERSION, RunId, UnitName
from protocol.model_units import ModelUnits, default_fragments, model_units
from protocol.plain_file import check_plain_file
from protocol.streaming import DEFAULT_ALPHA, DEFAULT_DELAY_STEPS, StreamingNumbers, contradiction
from protocol.tensor_schema import TensorSchema
from protocol.validation_text import explained

MANIFEST_DOMAIN: Final = "potluck run"
_ID_DOMAIN: Final = b"potluck manifest 1"
_NO_RUN: Final = bytes(32)
"""A manifest's envelope is signed before the run has an id."""

Count = Annotated[int, Field(ge=1, le=1 << 53)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

MAX_RUN_TOML_BYTES: Final = 1 << 20
"""What `potluck init` writes takes 2,000; a file this long is of another kind, and would be read to its end first."""

_FIRST_DATA_KEYS: Final = frozenset(["source", "glob", "shard_bytes", "heldout_every"])
"""Of the data section; written in every manifest."""

_FIRST_ROUND_KEYS: Final = frozenset(["target_tokens", "longest_interval_s", "codec", "chunk_elements"])
"""The same of the round section."""

_SOURCES_WITH_FIELDS: Final = frozenset(["jsonl", "parquet", "hf"])

_SOURCES_WITH_GLOBS: Final = frozenset(["text", "jsonl", "parquet"])

HUB_PREFIX: Final = "hf://"
"""What begins the name of a data set on the Hugging Face Hub. Nothing is fetched for what does not begin so."""

_HUB_NAME: Final = re.compile(HUB_PREFIX + r"[\w.-]+/[\w.-]+")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def _used(self, values: dict[str, object], first_keys: frozenset[str]) -> dict[str, object]:
        """What came in later is written only where it is used: the ids of runs before it stay what they are."""
        fields = type(self).model_fields
        return {n: v for n, v in values.items() if n in first_keys or v != fields[n].default}


class RunSection(_Section):
    """What the run is, and when it ends.

    `start_from` is a folder on the host's disk, as seen from run.toml: a checkpoint whose weights the run begins with. Peers get them
    as hashed shards. Empty for values from the seed.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")]
    seed: Annotated[int, Field(ge=0, le=(1 << 63) - 1)] = 1
    total_tokens: Count
    min_members: Annotated[int, Field(ge=1, le=64)] = 2
    max_members: Annotated[int, Field(ge=1, le=64)] = 64
    start_from: Annotated[str, Field(max_length=4096)] = ""

    @model_serializer(mode="wrap")
    def _leave_out_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        # The manifest of a run without it, and so the run's id, is what it was before this key came.
        values: dict[str, object] = handler(self)
        if not self.start_from:
            del values["start_from"]
        return values


class DataSection(_Section):
    """Where the host takes the text from; peers get hashed shards.

    Attributes:
        glob: the files of the sources "text", "jsonl" and "parquet", relative to run.toml.
        dataset: of the source "hf" the folder that `save_to_disk` of Hugging Face datasets wrote, relative to run.toml, or
            "hf://OWNER/NAME" on the Hub.
        configuration: of a data set on the Hub that has several.
        split: of a data set that has splits, the one that is read.
        field: of a JSON line the field, of a parquet file or a data set the column that holds the text.
        tokenizer: "bytes"; "bpe", byte-level BPE of model.vocab_size tokens trained on the training text; or a tokenizer.json.
        prose: a second evaluation set, never trained on: text files by a pattern. Python's library has its help topics.
        end_token: what a tokenizer.json calls the end of a document, where that is not one of the usual names.
    """

    source: Literal["python-stdlib", "text", "jsonl", "parquet", "hf"] = "python-stdlib"
    glob: str = ""
    dataset: Annotated[str, Field(max_length=1024)] = ""
    configuration: Annotated[str, Field(max_length=256)] = ""
    split: Annotated[str, Field(pattern=r"^\w[\w.-]*$", max_length=256)] = "train"
    shard_bytes: Annotated[int, Field(ge=4096, le=1 << 30)] = 1 << 20
    heldout_every: Annotated[int, Field(ge=2, le=1000)] = 20
    field: Annotated[str, Field(min_length=1, max_length=256)] = "text"
    tokenizer: Annotated[str, Field(pattern=r"^(bytes|bpe|.+\.json)$", max_length=1024)] = "bytes"
    prose: str = ""
    end_token: Annotated[str, Field(max_length=256)] = ""

    @model_validator(mode="after")
    def _check_keys(self) -> DataSection:
        if (self.source in _SOURCES_WITH_GLOBS) != bool(self.glob):
            raise ValueError(
                'a glob belongs to the sources "text", "jsonl" and "parquet", and to no other; such as "corpus/*.txt"'
            )
        self._check_dataset()
        if self.field != "text" and self.source not in _SOURCES_WITH_FIELDS:
            raise ValueError(f'field = "{self.field}" does not belong to source = "{self.source}"')
        if self.end_token and self.tokenizer in ("bytes", "bpe"):
            raise ValueError(f'end_token = "{self.end_token}" belongs to a tokenizer.json, not to "{self.tokenizer}"')
        return self

    def _check_dataset(self) -> None:
        if (self.source == "hf") != bool(self.dataset):
            raise ValueError(
                'a dataset belongs to the source "hf", and to no other: a folder such as "corpus", or "hf://OWNER/NAME"'
            )
        is_on_hub = self.dataset.startswith(HUB_PREFIX)
        if is_on_hub and not _HUB_NAME.fullmatch(self.dataset):
            raise ValueError(f'dataset = "{self.dataset}" is no name on the Hub, which is "hf://OWNER/NAME"')
        if self.configuration and not is_on_hub:
            raise ValueError(
                f'configuration = "{self.configuration}" belongs to a dataset on the Hub, "hf://OWNER/NAME"'
            )
        if self.split != "train" and self.source != "hf":
            raise ValueError(f'split = "{self.split}" does not belong to source = "{self.source}"')

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self._used(handler(self), _FIRST_DATA_KEYS)


class InnerSection(_Section):
    """Local training: AdamW; warm-up, stable, decay, by the run's tokens."""

    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)]
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    weight_decay: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    clip_norm: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    warmup_tokens: Annotated[int, Field(ge=0, le=1 << 53)] = 0
    decay_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    batch_tokens: Count


class OuterSection(_Section):
    """How a committed average moves the anchor."""

    kind: Literal["mean", "nesterov"] = "mean"
    learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] = 1.0
    momentum: Fraction = 0.0


SPARSE_FEEDBACK: Final = 0.95
_RESULT_ROOM: Final = (("top6", 4), ("top12", 8), ("top25", 16))
"""Of the codecs for means of sparse contributions: as many members' values have room (averaging/codecs/sparse.py)."""


def leaves_out(codec: str) -> bool:
    """Whether a result in this codec may be without values that its mean has."""
    return codec in ("topk", *dict(_RESULT_ROOM))


class RoundSection(_Section):
    """When a round is due and how its bytes look.

    `codec` is that of contributions, `result_codec` that of results: empty for the same, or, with "topk", for what has room for the
    values of all members (`RunConfig.result_codec`). `error_feedback` is the share of what the codec left out of a contribution that
    goes into the next one (averaging/error_feedback.py); left out it is `feedback`.

    `mode` is "overlap", in which the whole model is averaged at once while training goes on; "blocking", in which training waits from
    the snapshot to the commit, for `longest_interval_s` at most; or "streaming", in which fragments of the model are averaged one
    after another (protocol/model_units.py). The last three keys are of "streaming" alone: `fragments` of the layers, about three each
    where left out; `delay_steps` and `alpha`: a commit that comes at most so many local steps after the snapshot is mixed into the
    local parameters, of which that share stays (averaging/rounds/adoption.py; `RunConfig.delay_steps` and `.alpha`).
    """

    target_tokens: Count
    longest_interval_s: Annotated[float, Field(ge=1.0, le=86400.0)] = 60.0
    codec: Literal["fp32", "fp16", "int8", "int4", "e3m0", "topk"] = "int8"
    result_codec: Literal["", "fp32", "fp16", "int8", "int4", "e3m0", "top6", "top12", "top25"] = ""
    chunk_elements: Annotated[int, Field(ge=256, le=1 << 18)] = 16384
    error_feedback: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    mode: Literal["overlap", "blocking", "streaming"] = "overlap"
    fragments: Annotated[int, Field(ge=1, le=512)] | None = None
    delay_steps: Annotated[int, Field(ge=0, le=1000)] | None = None
    alpha: Fraction | None = None

    @property
    def feedback(self) -> float:
        """`error_feedback`; else 0.95 with "topk" (SparseLoCo, 2508.15706), without which most of the work would be lost, and 0 with
        others.
        """
        if self.error_feedback is not None:
            return self.error_feedback
        return SPARSE_FEEDBACK if self.codec == "topk" else 0.0

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self._used(handler(self), _FIRST_ROUND_KEYS)

    @model_validator(mode="after")
    def _check_mode(self) -> RoundSection:
        for name in ("fragments", "delay_steps", "alpha"):
            if self.mode != "streaming" and (value := getattr(self, name)) is not None:
                raise ValueError(f'{name} = {value} belongs to mode = "streaming", not to "{self.mode}"')
        return self

    @model_validator(mode="after")
    def _check_codecs(self) -> RoundSection:
        if self.codec != "topk" and self.result_codec in dict(_RESULT_ROOM):
            raise ValueError(
                f'result_codec = "{self.result_codec}" belongs to codec = "topk": it would leave out most of what "{self.codec}" sends'
            )
        return self


class AdmissionSection(_Section):
    """Who may take part, and for how long a credential lasts."""

    credential_days: Annotated[int, Field(ge=1, le=3650)] = 30


class CheckpointSection(_Section):
    """How often the coordinator writes a checkpoint, and which it keeps: the newest `keep`, and for ever one in every
    `keep_every`, none with 0.
    """

    every_rounds: Annotated[int, Field(ge=1, le=1 << 20)] = 5
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    keep_every: Annotated[int, Field(ge=0, le=1 << 20)] = 10


class RunConfig(_Section):
    """`run.toml`, validated."""

    run: RunSection
    model: DecoderConfig
    data: DataSection = DataSection()
    inner: InnerSection
    outer: OuterSection = OuterSection()
    round: RoundSection
    admission: AdmissionSection = AdmissionSection()
    checkpoint: CheckpointSection = CheckpointSection()

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
        if self.outer.kind == "mean" and self.outer.momentum:
            raise ValueError(
                f'outer.momentum {self.outer.momentum} with kind = "mean": expected 0, or kind = "nesterov"'
            )
        if self.num_fragments and (problem := contradiction(self._streaming())):
            raise ValueError(problem)
        return self

    @property
    def num_fragments(self) -> int:
        """Fragments that the layers are averaged in; 0 where the whole model is averaged at once."""
        if self.round.mode != "streaming":
            return 0
        return self.round.fragments or default_fragments(self.model.num_layers)

    @property
    def delay_steps(self) -> int:
        """Local steps in which a fragment's commit is expected; of streaming runs."""
        return DEFAULT_DELAY_STEPS if self.round.delay_steps is None else self.round.delay_steps

    @property
    def alpha(self) -> float:
        """Share of the local parameters that stays where a commit came within the delay; of streaming runs."""
        return DEFAULT_ALPHA if self.round.alpha is None else self.round.alpha

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
        """How results are written: as the round section says; else as contributions are; for sparse ones the codec with room for what
        so many members send at most, since what a result leaves out is lost (averaging/codecs/sparse.py).
        """
        if self.round.result_codec or self.round.codec != "topk":
            return self.round.result_codec or self.round.codec
        names = [name for name, num_members in _RESULT_ROOM if self.run.max_members <= num_members]
        return names[0] if names else _RESULT_ROOM[-1][0]


class RunManifest(_Section):
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
        """The units of the run and their tensors."""
        return {schema.unit: schema for schema in self.units.schemas}

    @property
    def units(self) -> ModelUnits:
        """The units in the order of the flat vector, the spine first."""
        return model_units(self.config.model, self.config.num_fragments)


def load_run_config(path: Path) -> RunConfig:
    """Read `run.toml`.

    Raises:
        ConfigError: unreadable, no TOML, an unknown key, or a value that cannot work; one line names file, key and remedy.
    """
    check_plain_file(path, "a run.toml", "write one with: potluck init")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_RUN_TOML_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        found = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(found, "a run.toml", "write one with: potluck init") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text: {error}", "a run.toml in UTF-8", "save it as UTF-8") from error
    if len(data) > MAX_RUN_TOML_BYTES:
        raise ConfigError(f"{path} is longer than {MAX_RUN_TOML_BYTES >> 20} MiB", "a run.toml", "check its kind")
    return parse_run_config(text, str(path))


def parse_run_config(text: str, name: str = "run.toml") -> RunConfig:
    """The configuration in a TOML text. Raises ConfigError as `load_run_config`."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(
            f"{name} is no TOML: {error}", "key = value lines under [sections]", "mend that line"
        ) from error
    try:
        return RunConfig.model_validate(values)
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
    if version != PROTOCOL_VERSION:
        raise VersionError(
            f"a run of protocol version {version}", f"version {PROTOCOL_VERSION}", "install the run's version"
        )
    try:
        manifest = RunManifest.model_validate_json(envelope.payload)
    except ValidationError as error:
        # Its signature is good, so it says what its host meant.
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


_DEFAULT_TOML: Final = """\
# A Potluck run. `potluck host run.toml` opens it and prints an invite for volunteers.

[run]
name = "first-light"
seed = 1
total_tokens = 20_000_000      # the run ends when this many tokens have been committed
min_members = 2                # the run starts when so many peers are ready; it goes on with whoever is left
# start_from = "my-model"      # begin with a Llama checkpoint in this folder, of the numbers under [model]

[model]                        # a decoder-only model: 0.8M parameters with these numbers
vocab_size = 257               # bytes and an end mark
dim = 128
num_layers = 4
num_heads = 4
num_kv_heads = 2
ffn_dim = 352
context_tokens = 128
is_tied = true                 # one matrix for embedding and output

[data]
source = "python-stdlib"       # or "text", "jsonl", "parquet" with a glob such as "corpus/**/*.txt"; or "hf"
# dataset = "corpus"           # of "hf": a folder that Hugging Face datasets saved to disk, or "hf://OWNER/NAME"
heldout_every = 20             # one file in so many is kept for evaluation; of jsonl, parquet and hf one row
# prose = "prose/*.txt"        # a second text to evaluate on, never trained on; python-stdlib has one of its own
# tokenizer = "bpe"            # trained on the text, model.vocab_size tokens; or the path of a tokenizer.json; else bytes

[inner]                        # AdamW on every peer
learning_rate = 0.003
warmup_tokens = 400_000
decay_fraction = 0.2           # the last fifth of the run decays to zero
batch_tokens = 2048            # per local step

[outer]                        # plain mean suits short rounds; for long ones try "nesterov", 0.7, 0.9
kind = "mean"
learning_rate = 1.0
momentum = 0.0

[round]
target_tokens = 122_880        # a round is due at 3 peers x 20 steps x 2048 tokens
longest_interval_s = 60.0
codec = "int8"                 # or fp32, fp16; "int4" and "e3m0" take half the bytes of int8, with 12% and 20% error a value
                               # "topk": the largest 1.56%, a fiftieth of int8's bytes up; down between a quarter and a twelfth
# mode = "streaming"           # fragments of about three layers, one after another; the whole at once with "overlap" or "blocking"
# error_feedback = 0.95        # what the codec left out goes into the next round: no byte more to send, 8 of memory a parameter

[checkpoint]
every_rounds = 5
keep = 3                       # the newest ones
keep_every = 10                # and for ever one in so many
"""


def default_run_toml() -> str:
    """The commented file that `potluck init` writes."""
    return _DEFAULT_TOML
