"""Copies a checkpoint and its export to an address by fsspec, and reads all of it back before it counts.

    ADDRESS/00000010-0123456789abcdef/manifest.json, ...    the checkpoint's files
    ADDRESS/00000010-0123456789abcdef/export/config.json, ...  the same model for other programs
    ADDRESS/newest.json                                      run, checkpoint, and each file's length and SHA-256

newest.json is written last, so a reader never finds half of a checkpoint by it. The checkpoint that it named before is removed then.
Files that it names already are not sent again, so scores that come later are one small file. Everything here blocks.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from coordinator.checkpoints.adapter_export import export_adapter
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.checkpoints.checkpoints import (
    MANIFEST_NAME,
    checkpoint_name,
    read_manifest,
    stored_files,
    verify_checkpoint,
)
from coordinator.checkpoints.stored_file import OnRead, StoredFile, hash_file
from coordinator.push.push_kinds import check_push
from coordinator.scores.score_files import SCORES_NAME
from protocol.errors import PotluckError, StorageError
from protocol.ids import CommitId

INDEX_NAME: Final = "newest.json"
EXPORT_NAME: Final = "export"
_PART_BYTES: Final = 1 << 20
_MAX_INDEX_BYTES: Final = 1 << 20
_CHECKPOINT_NAME: Final = re.compile(r"\d{8}-[0-9a-f]{16}")

OnBytes = Callable[[int, int], None]
"""(bytes done, all bytes): of the upload and of reading it back."""

GoOn = Callable[[], None]
"""Asked between two blocks of any file. It raises PotluckError where the push is to end."""


def for_ever() -> None:
    """A `GoOn` that ends nothing."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """A checkpoint that was verified at an address: its name and round, and the bytes of its files."""

    name: str
    index: int
    num_bytes: int


def push_checkpoint(
    url: str,
    checkpoint: Path,
    scratch: Path,
    go_on: GoOn = for_ever,
    on_bytes: OnBytes = lambda _done, _total: None,
) -> Pushed:
    """Push a checkpoint and its export. A checkpoint that is there whole already is not sent again.

    Args:
        url: an address that `check_push` takes. Credentials come from the environment.
        checkpoint: its folder.
        scratch: a folder for the export, which is made and removed.

    Raises:
        ConfigError, MachineError: as `check_push`, or there is no checkpoint.
        StorageError: the checkpoint does not verify, the address refuses, holds another run, or what is read back differs.
        PotluckError: of `go_on`.
    """
    check_push(url)
    on_read = _asking(go_on)
    manifest = read_manifest(checkpoint)
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        names = sorted((MANIFEST_NAME, SCORES_NAME, *stored_files(manifest)))  # and nothing that is being written
        files = {name: checkpoint / name for name in names if name != SCORES_NAME or (checkpoint / name).is_file()}
        if manifest.experts is not None:  # it has an export for each; their weights are in the checkpoint
            verify_checkpoint(checkpoint, on_read)
        else:
            export = export_checkpoint if manifest.adapter is None else export_adapter
            export(checkpoint, scratch, on_read=on_read)
            exported = sorted(path for path in scratch.iterdir() if path.is_file())
            files |= {f"{EXPORT_NAME}/{path.name}": path for path in exported}
        name = checkpoint_name(manifest.index, CommitId(bytes.fromhex(manifest.commit)))
        return _Place(url, go_on).push(name, manifest.run_id, manifest.index, files, on_bytes)
    except OSError as error:
        raise StorageError(f"{checkpoint} cannot be read ({error.strerror})", "a readable folder") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def push_scores(url: str, checkpoint: Path, go_on: GoOn = for_ever) -> None:
    """Push the scores of a checkpoint, if it is the newest at the address. Arguments and errors are those of `push_checkpoint`."""
    check_push(url)
    manifest = read_manifest(checkpoint)
    name = checkpoint_name(manifest.index, CommitId(bytes.fromhex(manifest.commit)))
    try:
        _Place(url, go_on).push_scores(name, manifest.run_id, checkpoint / SCORES_NAME)
    except OSError as error:
        raise StorageError(f"{checkpoint} cannot be read ({error.strerror})", "a readable folder") from error


def _asking(go_on: GoOn) -> OnRead:
    return lambda _num_bytes: go_on()


def _listed(stored: StoredFile) -> dict[str, object]:
    return {"sha256": stored.sha256, "num_bytes": stored.num_bytes}


def _files_of(index: Mapping[str, object]) -> dict[str, object]:
    files = index.get("files")
    return files if isinstance(files, dict) else {}


class _Place:
    """An address. Each method raises StorageError where it refuses."""

    def __init__(self, url: str, go_on: GoOn) -> None:
        import fsspec  # takes half a second

        self._url, self._go_on = url, go_on
        self._fs: Any = None
        with self._asked_to("be opened"):
            options = {"auto_mkdir": True} if url.startswith("file:") else {}
            self._fs, root = fsspec.core.url_to_fs(url, **options)
        self._root = str(root).rstrip("/")

    def push(self, name: str, run_id: str, index: int, files: Mapping[str, Path], on_bytes: OnBytes) -> Pushed:
        before = self._index()
        if before.get("run_id", run_id) != run_id:
            raise StorageError(
                f"{self._url} holds a checkpoint of another run", "an empty place, or this run's", "take another path"
            )
        hashes = {file: hash_file(path, _asking(self._go_on)) for file, path in files.items()}
        listed = {file: _listed(stored) for file, stored in hashes.items()}
        wanted = {"run_id": run_id, "checkpoint": name, "index": index, "files": listed}
        there = _files_of(before) if before.get("checkpoint") == name else {}
        total, done = sum(h.num_bytes for h in hashes.values()), 0
        if before != wanted:
            for file, path in files.items():
                if there.get(file) != listed[file]:
                    self._send(f"{name}/{file}", path, hashes[file])
                done += hashes[file].num_bytes
                on_bytes(done, total)
            self._write_index(wanted)
            self._remove(before.get("checkpoint"), name)
        return Pushed(name, index, total)

    def push_scores(self, name: str, run_id: str, path: Path) -> None:
        before = self._index()
        if (before.get("run_id"), before.get("checkpoint")) != (run_id, name):
            return
        stored = hash_file(path, _asking(self._go_on))
        files = _files_of(before)
        if files.get(SCORES_NAME) != _listed(stored):
            self._send(f"{name}/{SCORES_NAME}", path, stored)
            self._write_index({**before, "files": {**files, SCORES_NAME: _listed(stored)}})

    def _send(self, file: str, path: Path, stored: StoredFile) -> None:
        from fsspec.callbacks import Callback

        callback = Callback(hooks={"go on": lambda *_sizes, **_options: self._go_on()})
        with self._asked_to(f"take {file}"):
            self._fs.put_file(str(path), f"{self._root}/{file}", callback=callback)
        self._check(file, stored.sha256, stored.num_bytes)

    def _check(self, file: str, expected_sha256: str, num_bytes: int) -> None:
        digest, found_bytes = sha256(), 0
        with self._asked_to(f"give {file} back"):
            self._fs.invalidate_cache()
            with self._fs.open(f"{self._root}/{file}", "rb") as stream:
                while part := stream.read(_PART_BYTES):
                    self._go_on()
                    digest.update(part)
                    found_bytes += len(part)
        if (digest.hexdigest(), found_bytes) != (expected_sha256, num_bytes):
            raise StorageError(
                f"{file} at {self._url} has {found_bytes} bytes with SHA-256 {digest.hexdigest()[:8]}",
                f"{num_bytes} bytes with {expected_sha256[:8]}, as they were sent",
                "it is sent again",
            )

    def _index(self) -> dict[str, object]:
        """The values of newest.json; none if there is no such file, or not one of ours."""
        data = b""
        with self._asked_to(f"be asked for {INDEX_NAME}"), suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            with self._fs.open(f"{self._root}/{INDEX_NAME}", "rb") as stream:
                data = stream.read(_MAX_INDEX_BYTES)
        try:
            values = json.loads(data)
        except (ValueError, RecursionError):
            return {}
        return values if isinstance(values, dict) else {}

    def _write_index(self, values: Mapping[str, object]) -> None:
        data = (json.dumps(values, indent=1, sort_keys=True) + "\n").encode()
        with self._asked_to(f"take {INDEX_NAME}"):
            self._fs.pipe_file(f"{self._root}/{INDEX_NAME}", data)
        self._check(INDEX_NAME, sha256(data).hexdigest(), len(data))

    def _remove(self, before: object, name: str) -> None:
        """Remove the checkpoint that was the newest before. Nothing that these functions did not write has such a name."""
        if not isinstance(before, str) or before == name or not _CHECKPOINT_NAME.fullmatch(before):
            return
        with self._asked_to(f"remove {before}"), suppress(FileNotFoundError):
            self._fs.rm(f"{self._root}/{before}", recursive=True)

    @contextmanager
    def _asked_to(self, what: str) -> Iterator[None]:
        try:
            yield
        except PotluckError:
            raise
        except Exception as error:  # noqa: BLE001 - a backend may raise anything
            # the error's own words may hold a signed address, so that only its kind is told
            cause = getattr(error, "strerror", None) or type(error).__name__
            raise StorageError(
                f"{self._url} would not {what} ({cause})",
                "a place that this machine may read and write",
                "check the address, and the credentials in the environment",
            ) from None
