"""The sentences of `checkpoint verify` and `export`, and how far they are while they work."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.checkpoints.verify import export_sentence, verify_checkpoint
from protocol.errors import ConfigError
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of, decoder


def test_export_says_what_it_wrote_and_of_what_is_no_checkpoint_writes_nothing(tmp_path: Path) -> None:
    said = export_sentence(checkpoint_of(tmp_path / "checkpoints", decoder()), tmp_path / "out")
    assert said.startswith("verified and exported: round 3 of run, 0.0")
    assert f" MB to {tmp_path / 'out'}: model.safetensors, " in said
    (tmp_path / "file").write_bytes(b"{}")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(ConfigError, match="no checkpoint at"):
            export_sentence(path, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_both_tell_how_many_bytes_of_all_are_checked(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path / "checkpoints", decoder())
    for work in (
        lambda show: verify_checkpoint(path, show),
        lambda show: export_sentence(path, tmp_path / "out", None, show),
    ):
        told: list[tuple[int, int]] = []
        work(lambda done, total, told=told: told.append((done, total)))
        sizes = sum(file.stat().st_size for file in path.glob("*.safetensors"))
        assert told[-1] == (sizes, sizes)
        assert [done for done, _ in told] == sorted(done for done, _ in told)
