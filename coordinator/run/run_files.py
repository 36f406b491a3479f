"""The host's folder: made when a run is opened, read again at every later start.

- identity.key: the host's identity (protocol/identity/identity_file.py)
- authority.key: 32 secret bytes of the run's certificate authority, mode 0600
- authority.der: its certificate
- data/: packed shards and dataset.json
- manifest.signed: the signed run manifest. It is written last, so its presence means that the run is complete.
- ledger.sqlite3: coordinator/ledger/ledger.py. Beside it .count (coordinator/ledger/ledger_damage.py) and, while in use, SQLite's
    -wal and -shm
- checkpoints/: coordinator/checkpoints/checkpoints.py
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import structlog

from averaging.data.chat.run_template import RunTemplate, run_template
from averaging.data.chat.template_files import find_template
from averaging.data.packing.base_shards import BaseWeights
from averaging.data.packing.baselines import Baselines
from averaging.data.packing.expert_shards import check_each_expert
from averaging.data.packing.packing import NO_START, Packing, pack
from averaging.data.packing.read_back import ReadBackTokenizer
from averaging.data.shards import MANIFEST_NAME, DatasetManifest, parse_dataset
from averaging.data.sources.sources import open_source, source_bytes
from averaging.data.sources.texts import Split, Text, whole_documents
from averaging.data.start_weights import StartShard, start_shards
from averaging.data.tasks.task_packing import packed_task
from averaging.data.tokenizer import Tokenizer
from averaging.data.vocabulary import FileTokenizer, open_tokenizer
from averaging.host.progress import progress
from coordinator.run.forget_hosted import delete_run, is_unused
from coordinator.run.hosted_runs import MANIFEST_FILE
from coordinator.run.run_checks import check_new_run, check_push_address, check_start_tokenizer
from coordinator.run.run_router import packed_texts, routing_of
from protocol.errors import ConfigError, MachineError, PotluckError, StorageError, VersionError
from protocol.host.calls import START_DOMAIN
from protocol.identity.credential import CertificateAuthority, load_ca, make_ca
from protocol.identity.envelope import open_envelope
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import decode_body
from protocol.run.data_section import DataSection
from protocol.run.manifest import (
    RunConfig,
    RunFile,
    RunManifest,
    load_run_config,
    open_manifest,
    sign_manifest,
)
from protocol.run.page_section import NO_WORDS, PageSection
from protocol.tensors.tensor_schema import ChunkGrid

_log = structlog.get_logger()

IDENTITY_FILE: Final = "identity.key"
CHECKPOINT_FOLDER: Final = "checkpoints"
DATA_FOLDER: Final = "data"
AUTHORITY_KEY: Final = "authority.key"
_AUTHORITY_CERTIFICATE: Final = "authority.der"

_UNFINISHED_DATA: Final = "data.unfinished"
"""Data is packed here. The folder gets its final name when the data is complete and large enough, so a failure leaves nothing
behind.
"""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """An opened run. `page` has the words of the file that it was opened with now, and `push` its address for checkpoints."""

    folder: Path
    manifest: RunManifest
    signed_manifest: bytes
    dataset: DatasetManifest
    authority: CertificateAuthority
    was_created: bool
    page: PageSection = NO_WORDS
    push: str = ""

    @property
    def start_shards(self) -> tuple[StartShard, ...]:
        """Files of the weights that the run starts with; empty if they follow from the seed."""
        return start_shards(self.dataset, lambda name: self.folder / DATA_FOLDER / name)


def open_run(run_file: Path, folder: Path, host: Identity, *, now_unix_s: float, is_open: bool = False) -> RunFiles:
    """Open the run in `folder`, or make it from `run_file`: pack the data, make the authority, sign. A run with other numbers that
    nobody ever joined gives way. `is_open`: admit strangers, whatever the file says. Blocks.

    Raises:
        ConfigError: an invalid value, a glob without files or with too little text, or another run's file; or as `check_new_run`.
        StorageError: the folder cannot be written or is damaged.
    """
    config = load_run_config(run_file, is_open=is_open)
    if gives_way(config, folder):
        _log.warning(
            "unused_run_replaced", folder=str(folder), reason=f"nobody has joined it, and {run_file.name} has changed"
        )
        delete_run(folder)
    if is_opened(folder):
        return reopen_run(run_file, config, folder)
    for note in check_new_run(config, run_file.parent):
        _log.warning("may_not_be_meant", reason=note)
    yardsticks = Baselines()
    dataset = _pack(config, folder, run_file.parent, yardsticks)
    authority = _make_authority(folder, now_unix_s)
    manifest = RunManifest(
        config=config,
        dataset_id=dataset.dataset_id,
        dataset_tokens=dataset.num_tokens("train"),
        heldout_tokens=dataset.num_tokens("heldout"),
        zlib_bits_per_byte=yardsticks.zlib_bits_per_byte(),
        pairs_nats_per_byte=yardsticks.pairs_nats_per_byte(),
        host_public_key=host.public_key.hex(),
        ca_certificate_sha256=sha256(authority.certificate_der).hexdigest(),
    )
    signed = sign_manifest(manifest, host)
    _write(folder / MANIFEST_FILE, signed)
    run = RunFiles(folder, manifest, signed, dataset, authority, was_created=True)
    return replace(run, page=config.page, push=config.checkpoint.push)


def load_run(folder: Path) -> RunFiles:
    """The run in `folder`. Blocks.

    Raises:
        ConfigError: there is none.
        VersionError: another release made it.
        StorageError: it is damaged.
    """
    if not is_opened(folder):
        raise ConfigError(f"no run in {folder}", "the folder of a hosted run", "open one with: potluck host RUN_FILE")
    signed = _read(folder / MANIFEST_FILE)
    try:
        manifest = open_manifest(signed, verifier=Ed25519Verifier())
        dataset = parse_dataset(_read(folder / DATA_FOLDER / MANIFEST_NAME), manifest.dataset_id)
        authority = load_ca(_read(folder / AUTHORITY_KEY), _read(folder / _AUTHORITY_CERTIFICATE))
    except (StorageError, VersionError):
        raise
    except (PotluckError, ValueError) as error:
        raise StorageError(f"the run in {folder} is damaged ({error})", "what was written", "restore a copy") from error
    return RunFiles(folder, manifest, signed, dataset, authority, was_created=False)


@dataclass(frozen=True, slots=True)
class RunTokenizer:
    """The bytes of the run's tokenizer.json, and the token that ends a document."""

    data: bytes
    end: int


def run_tokenizer(run: RunFiles) -> RunTokenizer | None:
    """The run's tokenizer.json as it goes into checkpoints; None if tokens are bytes. Blocks.

    Raises:
        StorageError: the file is missing.
    """
    entry = run.dataset.tokenizer
    return None if entry is None else RunTokenizer(_read(run.folder / DATA_FOLDER / entry.sha256), entry.end)


def chat_template(run: RunFiles) -> bytes:
    """The file of the run's chat template as it goes into checkpoints; empty in a run without chats. Blocks.

    Raises:
        StorageError: the file is missing.
    """
    entry = run.dataset.template
    return b"" if entry is None else _read(run.folder / DATA_FOLDER / entry.sha256)


def start_units(
    manifest: RunManifest, sealed_start: bytes | None = None, given: Sequence[StartShard] = ()
) -> tuple[StartUnit, ...]:
    """The units as the start record names them. Blocks: without a start record the genesis state is computed, which is slow for a
    large model. `given` are the shards of the weights to start with.

    Raises:
        RemoteProtocolError: `sealed_start` is no start record of the run.
        StorageError: a shard of the weights to start with is lost or damaged.
    """
    if sealed_start is not None:
        run_id, verifier = manifest.run_id, Ed25519Verifier()
        envelope = open_envelope(sealed_start, verifier=verifier, domain=START_DOMAIN, run_id=run_id, now_unix_ms=None)
        return decode_body(StartRecord, envelope.payload).units
    from averaging.state.start_state import (
        start_root,  # imports torch, which takes seconds that a later start saves
    )

    config = manifest.config
    model = manifest.model_schema
    units = []
    for unit, schema in manifest.unit_schemas().items():
        grid = ChunkGrid(schema.num_elements, config.chunk_elements)
        units.append(StartUnit(unit, schema.fingerprint(), start_root(schema, grid, config.run.seed, given, model)))
    return tuple(units)


def is_opened(folder: Path) -> bool:
    """Whether the folder has a run, which a later start resumes."""
    return (folder / MANIFEST_FILE).exists()


def gives_way(config: RunConfig, folder: Path) -> bool:
    """Whether the folder has a run with other numbers than `config` that nobody ever joined, so that `open_run` replaces it. Blocks.

    Raises:
        VersionError, StorageError: as `load_run`.
    """
    return is_opened(folder) and bool(_difference(config, load_run(folder))) and is_unused(folder)


def reopen_run(run_file: Path, config: RunFile, folder: Path) -> RunFiles:
    """The run in `folder`, whose configuration must equal `config` from `run_file`, words about the run aside. Writes nothing.
    Blocks.

    Raises:
        ConfigError: the file differs from the one that the run was opened with, or there is no run.
        VersionError, StorageError: as `load_run`.
    """
    check_push_address(config)
    run = load_run(folder)
    if key := _difference(config, run):
        raise ConfigError(
            f"{run_file}: {key} differs from the run that is in {folder}",
            "the file that the run was opened with",
            _what_to_do(key, run),
        )
    return replace(run, page=config.page, push=config.checkpoint.push)


def _what_to_do(key: str, run: RunFiles) -> str:
    """The ways on from a run file with another value of this key than the opened run."""
    config = run.manifest.config
    if key == "run.total_tokens" and config.run.shards == "data":
        return (
            "undo the change; to train its model for longer, write it with: potluck checkpoint export latest OUT_DIR, set "
            'start_from = "OUT_DIR" in [run], and open a new run with another --state-dir'
        )
    if key == "admission.open" and config.admission.open:
        return "this run admits strangers: start it with --open, or with open = true in [admission]"
    forget = f"potluck runs forget {shlex.quote(config.run.name)}"
    return f"undo the change, open a new run with another --state-dir, or delete this one: {forget}"


def _difference(config: RunConfig, run: RunFiles) -> str:
    """The first key with another value in `config` than in an opened run; empty if there is none."""
    found, expected = config.model_dump(mode="json"), run.manifest.config.model_dump(mode="json")
    if "chunk_elements" not in config.round.model_fields_set:
        # the release that opened the run may have computed another number
        found["round"]["chunk_elements"] = expected["round"]["chunk_elements"]
    return _first_difference(found, expected)


def _first_difference(found: Mapping[str, object], expected: Mapping[str, object], prefix: str = "") -> str:
    for name in sorted(found.keys() | expected.keys()):
        one, other = found.get(name), expected.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            if key := _first_difference(one, other, f"{prefix}{name}."):
                return key
        elif one != other:
            return prefix + name
    return ""


def _pack(config: RunConfig, folder: Path, base: Path, yardsticks: Baselines) -> DatasetManifest:
    data, start = config.data, _start_bytes(config, base)
    frozen = _base_weights(config, base)
    source = open_source(data, base)
    tokenizer = open_tokenizer(data, base, source.texts(), config.model.vocab_size)
    check_start_tokenizer(config, base, tokenizer)
    template = _chat_template(data, base, tokenizer)
    tasks = [packed_task(task, base, tokenizer, config.model.context_tokens, template) for task in config.evaluate]
    read = packed_texts(config, source)
    routing = routing_of(config, base, read, tokenizer)
    unfinished, final = folder / _UNFINISHED_DATA, folder / DATA_FOLDER
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with progress("packing the data", source_bytes(data, base)) as shown:

            def seen(text: Text) -> None:
                yardsticks.add(text)
                shown.add(len(text.data))

            encoder, texts = _checked(tokenizer, read())
            packing = Packing(
                data.shard_bytes,
                data.source,
                source.licence,
                start=start,
                base=frozen,
                routing=routing,
                tasks=tasks,
                template=b"" if template is None else template.file_bytes(),
                has_counts=data.counts_some,
                has_starts=data.isolate,
                source_names=data.source_names,
            )
            dataset = pack(texts, encoder, unfinished, packing, seen)
        _report_loss(encoder)
        _check_enough(config, dataset)
        check_each_expert(dataset, config.model.context_tokens + 1)
        # Left by a crash before the manifest was signed.
        shutil.rmtree(final, ignore_errors=True)
        unfinished.rename(final)
    except OSError as error:
        raise StorageError(f"{final} cannot be written ({error.strerror})", "a writable folder") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return dataset


def _chat_template(data: DataSection, base: Path, tokenizer: Tokenizer) -> RunTemplate | None:
    return run_template(find_template(data, base), tokenizer) if data.has_chats else None


def _checked(tokenizer: Tokenizer, texts: Iterator[Text]) -> tuple[Tokenizer, Iterator[Text]]:
    """The tokenizer and the texts as they are packed: read back, and whole, unless tokens are bytes."""
    if not isinstance(tokenizer, FileTokenizer):
        return tokenizer, texts
    return ReadBackTokenizer(tokenizer), whole_documents(texts, tokenizer.cut)


def _report_loss(encoder: Tokenizer) -> None:
    if isinstance(encoder, ReadBackTokenizer):
        encoder.check()
        if encoder.loss:
            _log.warning("text_lost", reason=encoder.loss)


def _start_bytes(config: RunConfig, base: Path) -> memoryview:
    """The weights that the run begins with, little-endian float32 in the schema's order; empty if they follow from the seed."""
    if not config.run.start_from or config.adapter is not None:
        return NO_START
    from coordinator.checkpoints.weights_import import read_weights

    values_N = read_weights(base / config.run.start_from, config.model).numpy()
    return values_N.astype("<f4", copy=False).data.cast("B")


def _base_weights(config: RunConfig, base: Path) -> BaseWeights | None:
    """The frozen base of a run with an adapter."""
    if config.adapter is None:
        return None
    from coordinator.checkpoints.base_import import base_weights

    return base_weights(base / config.run.start_from, config.model)


def _check_enough(config: RunConfig, dataset: DatasetManifest) -> None:
    """Check that each part of the data, prose included if there is any, has at least one window of the context plus one token.
    Peers train and evaluate on such windows.
    """
    window = config.model.context_tokens + 1
    if not dataset.num_counted("train") or not dataset.num_counted("heldout"):
        raise ConfigError(
            "data: no token counts of the text to train on, or of the held-out text",
            "answers or completions in both",
            "add rows, or lower data.heldout_every",
        )
    _check_sources(config, dataset, window)
    parts: tuple[tuple[str, Split], ...] = (("training", "train"), ("held-out", "heldout"), ("prose", "prose"))
    for part, split in parts:
        found = dataset.num_tokens(split)
        if found < window and (found or split != "prose"):
            raise ConfigError(
                f"data: the {part} text has {found} tokens",
                f"at least {window}, which is model.context_tokens and one more",
                "add text, or shorten model.context_tokens",
            )


def _check_sources(config: RunConfig, dataset: DatasetManifest, window: int) -> None:
    """Check that each source of a mixture has at least one window of each part that is needed."""
    parts: tuple[tuple[str, Split], ...] = (("training", "train"), ("held-out", "heldout"))
    for part, split in parts:
        for name, span in zip(config.data.source_names, dataset.source_spans(split, config.data.weights), strict=True):
            if span.stop - span.begin < window:
                raise ConfigError(
                    f"data: the {part} text of {name} has {span.stop - span.begin} tokens",
                    f"at least {window}, which is model.context_tokens and one more",
                    "add text to this source, or leave it out",
                )


def _make_authority(folder: Path, now_unix_s: float) -> CertificateAuthority:
    seed = secrets.token_bytes(32)
    authority = make_ca(seed, now_unix_s=now_unix_s)
    _write(folder / AUTHORITY_KEY, seed)
    _write(folder / _AUTHORITY_CERTIFICATE, authority.certificate_der)
    return authority


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read ({error.strerror})", "the run's own file", "restore a copy"
        ) from error


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, readable by the owner only."""
    temporary = path.with_name(path.name + ".unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise MachineError(f"{path} cannot be written ({error.strerror})", "a writable folder with space") from error
