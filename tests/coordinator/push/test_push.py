"""Pushes to a folder, to fsspec's memory and to a hub on this machine, and to places that refuse, lose or change what they get."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from coordinator.checkpoints.adapter_export import export_adapter
from coordinator.checkpoints.checkpoints import CheckpointManifest, verify_checkpoint
from coordinator.push import push_kinds
from coordinator.push.push import INDEX_NAME, push_checkpoint, push_scores
from coordinator.push.push_kinds import check_push
from protocol.errors import ConfigError, MachineError, StorageError, TemporaryError
from tests.coordinator.checkpoints.adapter_checkpoint import checkpoint_of_adapter
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of, decoder
from tests.coordinator.push.hub_server import MODEL, Hub, serving_hub

HUB = f"hf://{MODEL}"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return checkpoint_of(tmp_path, decoder())


@pytest.fixture
def memory() -> Iterator[str]:
    url = f"memory://bucket-{secrets.token_hex(4)}/run"
    yield url
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving_hub() as hub:
        monkeypatch.setitem(fsspec.config.conf, "hf", {"endpoint": hub.url, "skip_instance_cache": True})
        monkeypatch.setenv("HF_TOKEN", "verysecret")
        yield hub


def test_a_folder_gets_the_checkpoint_its_export_and_an_index_and_all_of_it_verifies(
    checkpoint: Path, tmp_path: Path
) -> None:
    target = tmp_path / "models" / "one"
    seen: list[tuple[int, int]] = []
    pushed = push_checkpoint(
        f"file://{target}", checkpoint, tmp_path / "scratch", on_bytes=lambda *both: seen.append(both)
    )
    assert verify_checkpoint(target / pushed.name).index == pushed.index
    assert (target / pushed.name / "export" / "model.safetensors").exists()
    index = json.loads((target / INDEX_NAME).read_text())
    assert (index["checkpoint"], index["index"]) == (pushed.name, pushed.index)
    assert {"manifest.json", "export/config.json"} <= index["files"].keys()
    assert seen[-1] == (pushed.num_bytes, pushed.num_bytes)
    assert not (tmp_path / "scratch").exists()


def test_an_adapters_checkpoint_is_pushed_with_its_export_as_an_adapter(memory: str, tmp_path: Path) -> None:
    checkpoint = checkpoint_of_adapter(tmp_path / "host", decoder())
    fs, root = fsspec.core.url_to_fs(memory)
    pushed = push_checkpoint(memory, checkpoint, tmp_path / "scratch")
    exported = export_adapter(checkpoint, tmp_path / "expected")
    assert {"adapter_model.safetensors", "adapter_config.json"} <= set(exported.files)
    there = {path.rpartition("/")[2]: fs.cat_file(path) for path in fs.find(f"{root}/{pushed.name}/export")}
    assert there == {name: (tmp_path / "expected" / name).read_bytes() for name in exported.files}
    assert verified_copy(fs, f"{root}/{pushed.name}", tmp_path / "copy").adapter is not None


def verified_copy(fs: Any, there: str, folder: Path) -> CheckpointManifest:
    folder.mkdir()
    for path in fs.ls(there, detail=False):
        if fs.isfile(path):
            fs.get_file(path, str(folder / path.rpartition("/")[2]))
    return verify_checkpoint(folder)


@pytest.mark.parametrize(
    "name", ["scores.json.unfinished", "manifest.json.unfinished", ".writing-x", "tokenizer.json.part", "notes.txt"]
)
def test_a_file_that_is_being_written_or_is_of_others_is_never_pushed(
    checkpoint: Path, memory: str, tmp_path: Path, name: str
) -> None:
    (checkpoint / name).write_bytes(b"half of a")
    (checkpoint / "scores.json").write_text("{}")
    pushed = push_checkpoint(memory, checkpoint, tmp_path / "scratch")
    fs, root = fsspec.core.url_to_fs(memory)
    sent = {path.removeprefix(f"/{root.strip('/')}/{pushed.name}/") for path in fs.find(f"{root}/{pushed.name}")}
    assert name not in sent
    assert {"scores.json", "manifest.json"} <= sent
    assert sent == json.loads(fs.cat_file(f"{root}/{INDEX_NAME}"))["files"].keys()


def test_the_newest_checkpoint_takes_the_place_of_the_one_before_and_nothing_else_is_touched(
    checkpoint: Path, memory: str, tmp_path: Path
) -> None:
    fs, root = fsspec.core.url_to_fs(memory)
    fs.pipe_file(f"{root}/notes.txt", b"mine")
    first = push_checkpoint(memory, checkpoint, tmp_path / "scratch")
    index = json.loads(fs.cat_file(f"{root}/{INDEX_NAME}"))
    old = "00000001-0123456789abcdef"
    fs.pipe_file(f"{root}/{old}/manifest.json", b"{}")
    fs.pipe_file(f"{root}/{INDEX_NAME}", json.dumps({**index, "checkpoint": old}).encode())
    again = push_checkpoint(memory, checkpoint, tmp_path / "scratch")
    names = {path.removeprefix(root).strip("/").split("/")[0] for path in fs.find(root)}
    assert (again, names) == (first, {"notes.txt", INDEX_NAME, first.name})
    fs.pipe_file(f"{root}/{INDEX_NAME}", json.dumps({**index, "checkpoint": "../.."}).encode())
    push_checkpoint(memory, checkpoint, tmp_path / "scratch")
    assert fs.cat_file(f"{root}/notes.txt") == b"mine"


def test_what_is_there_whole_is_not_sent_again(
    checkpoint: Path, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_checkpoint(memory, checkpoint, tmp_path / "scratch")
    monkeypatch.setattr(MemoryFileSystem, "put_file", None)
    push_checkpoint(memory, checkpoint, tmp_path / "scratch")


def test_scores_that_come_later_are_one_small_file_more(
    checkpoint: Path, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, root = fsspec.core.url_to_fs(memory)
    pushed = push_checkpoint(memory, checkpoint, tmp_path / "scratch")
    sent, put = list[str](), MemoryFileSystem.put_file

    def watched(fs: MemoryFileSystem, source: str, target: str, **options: Any) -> None:
        sent.append(target.rpartition("/")[2])
        put(fs, source, target, **options)

    monkeypatch.setattr(MemoryFileSystem, "put_file", watched)
    for text in ("{}", '{"run_id": ""}'):
        (checkpoint / "scores.json").write_text(text)
        push_scores(memory, checkpoint)
        push_scores(memory, checkpoint)
        assert fs.cat_file(f"{root}/{pushed.name}/scores.json").decode() == text
    (checkpoint / "scores.json").write_text("[]")
    push_checkpoint(memory, checkpoint, tmp_path / "scratch")
    assert sent == ["scores.json"] * 3
    index = json.loads(fs.cat_file(f"{root}/{INDEX_NAME}"))
    for name, listed in index["files"].items():
        data = fs.cat_file(f"{root}/{pushed.name}/{name}")
        assert (sha256(data).hexdigest(), len(data)) == (listed["sha256"], listed["num_bytes"])


@pytest.mark.parametrize("there", [{}, {"run_id": "ff" * 32}, {"run_id": "ab" * 32, "checkpoint": "another"}])
def test_scores_of_a_checkpoint_that_is_not_the_newest_there_are_not_pushed(
    checkpoint: Path, memory: str, there: dict[str, str]
) -> None:
    fs, root = fsspec.core.url_to_fs(memory)
    fs.pipe_file(f"{root}/{INDEX_NAME}", json.dumps(there).encode())
    (checkpoint / "scores.json").write_text("{}")
    push_scores(memory, checkpoint)
    assert len(fs.find(root)) == 1


class _Over(TemporaryError):
    """The push is to end."""


@pytest.mark.parametrize("asked", [1, 2, 5, 9, 13])
def test_a_push_ends_at_the_next_block_where_it_is_to(
    checkpoint: Path, memory: str, tmp_path: Path, asked: int
) -> None:
    left = asked

    def go_on() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise _Over("out of time", "time")

    with pytest.raises(_Over):
        push_checkpoint(memory, checkpoint, tmp_path / "scratch", go_on)
    assert left == 0, "it is not asked again"
    fs, root = fsspec.core.url_to_fs(memory)
    assert not fs.exists(f"{root}/{INDEX_NAME}")
    assert not (tmp_path / "scratch").exists()


def test_a_place_with_another_run_is_left_alone(checkpoint: Path, memory: str, tmp_path: Path) -> None:
    fs, root = fsspec.core.url_to_fs(memory)
    fs.pipe_file(f"{root}/{INDEX_NAME}", json.dumps({"run_id": "ff" * 32, "checkpoint": "x"}).encode())
    with pytest.raises(StorageError, match="holds a checkpoint of another run"):
        push_checkpoint(memory, checkpoint, tmp_path / "scratch")
    assert len(fs.find(root)) == 1


def _refusing(cause: Exception) -> Callable[..., None]:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise cause

    return refuse


@pytest.mark.parametrize(
    ("method", "cause", "found"),
    [
        (
            "put_file",
            PermissionError(13, "Permission denied"),
            r"would not take \S*momentum.safetensors \(Permission denied\)",
        ),
        (
            "put_file",
            RuntimeError("https://host/?token=verysecret"),
            r"would not take \S*momentum.safetensors \(RuntimeError\)",
        ),
        ("pipe_file", TimeoutError("verysecret"), r"would not take newest.json \(TimeoutError\)"),
        ("open", ConnectionError("verysecret"), r"would not be asked for newest.json \(ConnectionError\)"),
    ],
)
def test_a_place_that_refuses_is_one_line_without_the_words_of_its_library(
    checkpoint: Path,
    memory: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    cause: Exception,
    found: str,
) -> None:
    monkeypatch.setattr(MemoryFileSystem, method, _refusing(cause))
    with pytest.raises(StorageError, match=found) as caught:
        push_checkpoint(memory, checkpoint, tmp_path / "scratch")
    line = caught.value.one_line()
    assert "verysecret" not in line
    assert "\n" not in line
    assert not (tmp_path / "scratch").exists()


def test_a_place_that_changes_what_it_gets_is_found_and_never_named_newest(
    checkpoint: Path, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = MemoryFileSystem.put_file

    def cut(fs: MemoryFileSystem, source: str, target: str, **options: Any) -> None:
        put(fs, source, target, **options)
        fs.pipe_file(target, fs.cat_file(target)[:-1] + b"?")

    monkeypatch.setattr(MemoryFileSystem, "put_file", cut)
    with pytest.raises(StorageError, match=r"SHA-256 .*; expected \d+ bytes with"):
        push_checkpoint(memory, checkpoint, tmp_path / "scratch")
    fs, root = fsspec.core.url_to_fs(memory)
    assert not fs.exists(f"{root}/{INDEX_NAME}")


def test_a_damaged_checkpoint_is_not_pushed(checkpoint: Path, memory: str, tmp_path: Path) -> None:
    (weights,) = checkpoint.glob("*.momentum.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(StorageError, match="momentum"):
        push_checkpoint(memory, checkpoint, tmp_path / "scratch")
    fs, root = fsspec.core.url_to_fs(memory)
    assert not fs.exists(root)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("s3://bucket/run", "s3fs", "s3"),
        ("gs://bucket/run", "gcsfs", "gs"),
        ("gcs://bucket/run", "gcsfs", "gs"),
        ("hf://owner/model", "huggingface_hub", "hf"),
    ],
)
def test_a_kind_whose_package_is_missing_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, url: str, package: str, extra: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(push_kinds, "find_spec", asked.append)
    with pytest.raises(MachineError) as caught:
        check_push(url)
    assert asked == [package]
    assert f"{package} is not installed" in caught.value.one_line()
    assert f'pip install "potluck-train[{extra}]"' in caught.value.one_line()


def test_credentials_in_an_address_are_refused() -> None:
    with pytest.raises(ConfigError, match="credentials or options"):
        check_push("s3://key:secret@bucket/run")


def test_a_folder_that_cannot_be_written_is_named(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalFileSystem, "put_file", _refusing(OSError(28, "No space left on device")))
    with pytest.raises(StorageError, match="No space left on device"):
        push_checkpoint(f"file://{tmp_path}/models", checkpoint, tmp_path / "scratch")


def test_a_hub_gets_the_checkpoint_its_export_and_scores_that_come_later(hub: Hub, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, decoder())
    pushed = push_checkpoint(HUB, checkpoint, tmp_path / "scratch")
    (checkpoint / "scores.json").write_text("{}")
    push_scores(HUB, checkpoint)
    index = json.loads(hub.files[INDEX_NAME])
    assert {"manifest.json", "export/config.json", "scores.json"} <= index["files"].keys()
    found = {name: hub.files[f"{pushed.name}/{name}"] for name in index["files"]}
    assert {name: sha256(data).hexdigest() for name, data in found.items()} == {
        name: listed["sha256"] for name, listed in index["files"].items()
    }
    copy = tmp_path / "copy"
    for name, data in found.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(data)
    assert verify_checkpoint(copy).index == pushed.index


def test_the_newest_checkpoint_takes_the_place_of_the_one_before_on_a_hub(hub: Hub, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path, decoder())
    pushed, old = push_checkpoint(HUB, checkpoint, tmp_path / "scratch"), "00000001-0123456789abcdef"
    hub.files |= {f"{old}/manifest.json": b"{}", f"{old}/export/config.json": b"{}", "README.md": b"mine"}
    hub.files[INDEX_NAME] = json.dumps({**json.loads(hub.files[INDEX_NAME]), "checkpoint": old}).encode()
    push_checkpoint(HUB, checkpoint, tmp_path / "scratch")
    assert {path.partition("/")[0] for path in hub.files} == {"README.md", INDEX_NAME, pushed.name}


@pytest.mark.parametrize("address", [f"{HUB}/run", "hf://nobody/else", "hf://nobody"])
def test_a_hub_that_refuses_is_one_line_without_its_words(hub: Hub, tmp_path: Path, address: str) -> None:
    hub.is_closed = True
    with pytest.raises(StorageError, match=f"{address} would not take ") as caught:
        push_checkpoint(address, checkpoint_of(tmp_path, decoder()), tmp_path / "scratch")
    line = caught.value.one_line()
    assert "verysecret" not in line
    assert "\n" not in line
    assert not hub.files
