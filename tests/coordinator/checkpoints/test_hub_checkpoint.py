"""Downloads from the Hugging Face Hub: config.json first, no code, and one line for each way to fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import errors

from coordinator.checkpoints.hub_checkpoint import fetch_checkpoint
from protocol.errors import ConfigError, MachineError, PotluckError, UnreachableError


def _answer(status: int) -> Any:
    return httpx2.Response(status, request=httpx2.Request("GET", "https://huggingface.co"))


def test_config_json_is_checked_before_the_weights_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def download(name: str, *, local_dir: Path, allow_patterns: list[str], ignore_patterns: list[str]) -> None:
        assert (name, local_dir, ignore_patterns) == ("owner/name", tmp_path, ["*/*"])
        asked.append(allow_patterns)

    def refuse(_folder: Path) -> None:
        raise ConfigError("a model", "another")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ConfigError):
        fetch_checkpoint("owner/name", tmp_path, refuse)
    assert asked == [["config.json"]]
    fetch_checkpoint("owner/name", tmp_path, lambda _folder: None)
    assert "*.safetensors" in asked[-1]
    assert not [pattern for patterns in asked for pattern in patterns if pattern.endswith((".py", ".bin", "*"))]


@pytest.mark.parametrize(
    ("make", "kind", "found"),
    [
        (
            lambda: errors.RepositoryNotFoundError("404: no such\nmore", response=_answer(404)),
            ConfigError,
            "or not for everybody",
        ),
        (lambda: errors.HFValidationError("two dots"), ConfigError, "is no name on the Hugging Face Hub"),
        (lambda: errors.OfflineModeIsEnabled("offline"), UnreachableError, "name a folder on this machine"),
        (lambda: errors.LocalEntryNotFoundError("no way there"), UnreachableError, "no way there"),
        (lambda: errors.HfHubHTTPError("502", response=_answer(502)), UnreachableError, "502"),
        (lambda: OSError(28, "No space left on device"), MachineError, "No space left"),
    ],
)
def test_each_way_to_fail_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[], Exception],
    kind: type[PotluckError],
    found: str,
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise make()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(kind) as raised:
        fetch_checkpoint("owner/name", tmp_path, lambda _folder: None)
    assert found in raised.value.one_line()
    assert "\n" not in raised.value.one_line()


def test_without_the_library_the_install_that_brings_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MachineError, match=r"huggingface_hub is not installed.*potluck-train\[hf\]"):
        fetch_checkpoint("owner/name", tmp_path, lambda _folder: None)
