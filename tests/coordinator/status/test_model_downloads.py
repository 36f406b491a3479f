"""Downloads of the newest model on the public page: off unless the owner allows them, few at a time, and no other file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from averaging.host.http import bind_http, serve_http
from coordinator.status.model_downloads import ModelDownloads
from coordinator.status.status_page import RunSource, status_app
from protocol.errors import ConfigError
from tests.coordinator.status.test_status_page import CHECKPOINT, Source, get, serving, verify


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """A run with a checkpoint on the host's disk."""
    (tmp_path / CHECKPOINT).mkdir()
    (tmp_path / CHECKPOINT / "manifest.json").write_bytes(b"{}")
    return Source(tmp_path)


class Exports:
    """Writes a model of two files, and counts."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.is_refusing = False

    def __call__(self, checkpoint: Path, target: Path) -> None:
        self.made.append(checkpoint.name)
        if self.is_refusing:
            raise ConfigError("a run of experts", "one of them")
        target.mkdir(parents=True)
        (target / "config.json").write_bytes(b"{}")
        (target / "model.safetensors").write_bytes(b"weights of " + checkpoint.name.encode())


async def _answers(source: Source, downloads: ModelDownloads, *paths: str) -> list[tuple[int, bytes]]:
    listener = bind_http("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    found = []
    async with trio.open_nursery() as nursery:
        run = RunSource(source.look, source.events, verify, downloads)
        await nursery.start(serve_http, listener, status_app(run, is_public=True))
        for path in paths:
            status, _, body = await get(url + path)
            found.append((status, body))
        nursery.cancel_scope.cancel()
    return found


async def test_the_newest_model_is_exported_once_and_given(source: Source, tmp_path: Path) -> None:
    exports, newest = Exports(), [tmp_path / "00000001-aa"]
    downloads = ModelDownloads(tmp_path / "public", lambda: newest[-1], exports, most=2)
    (status, listed), (_, weights), (older, _), (outside, _) = await _answers(
        source,
        downloads,
        "/api/model",
        "/model/00000001-aa/model.safetensors",
        "/model/00000000-aa/model.safetensors",
        "/model/00000001-aa/..%2f..%2fsecret",
    )
    assert (status, weights, older, outside) == (200, b"weights of 00000001-aa", 404, 404)
    assert [row["name"] for row in json.loads(listed)["files"]] == ["config.json", "model.safetensors"]
    newest.append(tmp_path / "00000002-bb")
    ((_, weights),) = await _answers(source, downloads, "/model/00000002-bb/model.safetensors")
    assert weights == b"weights of 00000002-bb"
    assert exports.made == ["00000001-aa", "00000002-bb"]
    assert [path.name for path in (tmp_path / "public").iterdir()] == ["00000002-bb"]


async def test_one_download_too_many_is_asked_to_come_again(source: Source, tmp_path: Path) -> None:
    downloads = ModelDownloads(tmp_path / "public", lambda: tmp_path / "00000001-aa", Exports(), most=1)
    assert downloads.take()
    ((status, body),) = await _answers(source, downloads, "/model/00000001-aa/config.json")
    assert (status, body) == (503, b"too many downloads at once; try again later\n")
    downloads.give_back()
    ((status, _),) = await _answers(source, downloads, "/model/00000001-aa/config.json")
    assert status == 200
    assert downloads.take()


async def test_a_run_without_a_model_to_give_lists_none_and_tries_once(source: Source, tmp_path: Path) -> None:
    exports = Exports()
    exports.is_refusing = True
    downloads = ModelDownloads(tmp_path / "public", lambda: tmp_path / "00000001-aa", exports, most=1)
    found = await _answers(source, downloads, "/api/model", "/api/model", "/model/00000001-aa/config.json")
    assert [status for status, _ in found] == [200, 200, 404]
    assert json.loads(found[0][1]) == {"name": "", "files": []}
    assert exports.made == ["00000001-aa"]
    nothing = ModelDownloads(tmp_path / "public", lambda: None, exports, most=1)
    ((status, _),) = await _answers(source, nothing, "/api/model")
    assert status == 200


@pytest.mark.parametrize(
    "path", ["/api/model", f"/api/checkpoints/{CHECKPOINT}/files", f"/checkpoints/{CHECKPOINT}/manifest.json"]
)
async def test_without_the_owners_leave_the_public_page_gives_no_files(source: Source, path: str) -> None:
    async with serving(source, is_public=True) as url:
        status, _, _ = await get(url + path)
    assert status == 404
