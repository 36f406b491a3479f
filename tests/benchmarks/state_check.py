"""Everything that a killed host or peer left on disk, read by the readers of the product: what is torn, and up to where it is there.

Nothing is asserted here and nothing runs meanwhile: call it while the processes are dead.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import trio

from averaging.codecs import codec_by_name
from averaging.data.shards import ShardCache
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.lineage.updates import UnitContext, Updates
from averaging.state.generations import Generations
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from coordinator.checkpoints.checkpoints import verify_checkpoint
from coordinator.ledger.ledger import LEDGER_FILE, START_RECORD, Ledger, open_ledger
from coordinator.progress.chain_log import ChainLog
from coordinator.run.run_files import CHECKPOINT_FOLDER, IDENTITY_FILE, RunFiles, load_run
from peer.membership.joining import check_membership, open_start_record
from peer.membership.saved_membership import SavedMembership, is_known, last_run_folder, load_membership
from peer.session.build import result_codec
from peer.status.status import FINAL_STATUS_FILE, PeerStatus
from protocol.errors import PotluckError
from protocol.host.calls import START_DOMAIN
from protocol.identity.envelope import open_envelope
from protocol.identity.identity_file import open_identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.messages.wire import decode_certificate
from protocol.run.manifest import RunManifest, open_manifest
from protocol.tensors.model_config import WHOLE_MODEL
from protocol.tensors.tensor_schema import ChunkGrid

_LEFTOVERS: Final = ("*.unfinished", ".writing-*", "*.tmp")


@dataclass
class Found:
    """The contents of one state folder.

    Attributes:
        index: of the newest round that its log or ledger proves, 0 without one.
        roots: state root by commit, both in hex, of every generation or checkpoint.
        torn: one line for every file that is not what was written.
        num_files: how many files there are.
        num_leftovers: of these, unfinished ones, which the next start removes.
    """

    index: int = 0
    roots: dict[str, str] = field(default_factory=dict)
    torn: list[str] = field(default_factory=list)
    num_files: int = 0
    num_leftovers: int = 0


def conflicts(folders: Mapping[str, Found]) -> list[str]:
    """Commits for which two folders have different roots."""
    seen: dict[str, tuple[str, str]] = {}
    reported = []
    for name, found in folders.items():
        for commit, root in found.roots.items():
            other, other_root = seen.setdefault(commit, (name, root))
            if root != other_root:
                reported.append(f"{commit[:8]} has root {root[:8]} in {name} and {other_root[:8]} in {other}")
    return reported


def check_peer(state_dir: Path) -> Found:
    """A peer's folder: identity, counters, membership, log, generations, update bytes, data."""
    found = _counted(state_dir)
    run_folder = last_run_folder(state_dir)
    try:
        if (state_dir / "identity").exists():
            with open_identity(state_dir / "identity"):
                pass
        _check_numbers(state_dir, found)
        if run_folder is not None and is_known(run_folder):
            saved = load_membership(run_folder)
            if saved is not None:
                _check_run(state_dir, run_folder, saved, found)
    except (PotluckError, ValueError, OSError) as error:
        found.torn.append(f"{state_dir.name}: {error}")
    return found


def _counted(folder: Path) -> Found:
    files = [path for path in folder.rglob("*") if path.is_file()]
    leftovers = {path for pattern in _LEFTOVERS for path in folder.rglob(pattern)}
    return Found(num_files=len(files), num_leftovers=len(leftovers))


def _check_numbers(state_dir: Path, found: Found) -> None:
    for path in (state_dir / "session", *state_dir.glob("runs/*/*/incarnation")):
        if path.exists() and int(path.read_text()) < 1:
            found.torn.append(f"{path}: no number")
    final = state_dir / FINAL_STATUS_FILE
    if final.exists():
        PeerStatus.model_validate_json(final.read_bytes())


def _check_run(state_dir: Path, run_folder: Path, saved: SavedMembership, found: Found) -> None:
    manifest = open_manifest(saved.manifest, verifier=Ed25519Verifier())
    membership = check_membership(saved, manifest.run_id)
    cache = ShardCache(state_dir / "data")
    for entry in membership.dataset.shards:
        if cache.path(entry.sha256).exists() and not cache.has(entry):
            found.torn.append(f"data shard {entry.sha256[:8]}")
    if saved.start_record:
        start, verifier = open_start_record(saved.start_record, manifest), Ed25519Verifier(saved.ca_certificate_der)
        trio.run(_check_unit, run_folder, manifest, start, verifier, found)


async def _check_unit(
    run_folder: Path, manifest: RunManifest, start: bytes, verifier: Ed25519Verifier, found: Found
) -> None:
    offload = ThreadOffload()
    storage = FileStorage(run_folder / WHOLE_MODEL, offload)
    schema = manifest.unit_schemas()[WHOLE_MODEL]
    grid = ChunkGrid(schema.num_elements, manifest.config.chunk_elements)
    log, generations = UnitLog(storage), Generations(storage, grid, offload)
    codec = codec_by_name(manifest.config.round.codec)
    tools = UnitContext(
        manifest.run_id,
        WHOLE_MODEL,
        verifier,
        codec,
        grid,
        offload,
        log,
        generations,
        results=result_codec(manifest.config),
    )
    links: dict[bytes, ChainLink] = {(first := genesis_link(start, WHOLE_MODEL)).commit: first}
    for parent, raw in (await log.load()).certificates:
        link = verify_certificate(decode_certificate(raw), links[parent], verifier=verifier, run_id=manifest.run_id)
        links[link.commit] = link
        found.index = max(found.index, link.index)
        updates = Updates(tools)
        if await updates.read(link) is not None and await updates.read_good(link) is None:
            found.torn.append(f"{run_folder}: update bytes of round {link.index}")
    for ref in await generations.list():
        try:
            _, root = await generations.load(ref)
            found.roots[ref.commit.hex()] = root.hex()
        except PotluckError as error:
            found.torn.append(f"{run_folder}: {error}")


def check_host(folder: Path) -> Found:
    """The host's folder: identity, run, ledger, checkpoints."""
    found = _counted(folder)
    try:
        with open_identity(folder / IDENTITY_FILE):
            pass
        run = load_run(folder)
        for row in _integrity(folder / LEDGER_FILE):
            found.torn.append(f"ledger: {row}")
        with open_ledger(folder / LEDGER_FILE) as ledger:
            _check_ledger(ledger, run, found)
            known = {row.path for row in ledger.checkpoints()}
        for path in sorted((folder / CHECKPOINT_FOLDER).glob("[0-9]*")):
            checkpoint = verify_checkpoint(path)
            found.roots[checkpoint.commit] = checkpoint.state_root
            known.discard(path.name)
        found.torn += [f"checkpoint {name} is in the ledger and not on disk" for name in sorted(known)]
    except (PotluckError, ValueError, OSError, sqlite3.Error) as error:
        found.torn.append(f"{folder.name}: {error}")
    return found


def _integrity(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        reported = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
    connection.close()
    return [] if reported == ["ok"] else reported


def _check_ledger(ledger: Ledger, run: RunFiles, found: Found) -> None:
    start = ledger.get(START_RECORD)
    if start is None:
        return
    verifier, run_id = Ed25519Verifier(run.authority.certificate_der), run.manifest.run_id
    envelope = open_envelope(start, verifier=verifier, domain=START_DOMAIN, run_id=run_id, now_unix_ms=None)
    chain = ChainLog(genesis_link(envelope.payload, WHOLE_MODEL), run_id, verifier)
    chain.replay(ledger.commits(WHOLE_MODEL))
    found.index = chain.head.index


def described(folders: Mapping[str, Found]) -> str:
    """All of it in a line of JSON, for a report that has to say why."""
    return json.dumps({name: {"index": f.index, "torn": f.torn, "files": f.num_files} for name, f in folders.items()})
