from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.checks.own_speed import OwnSpeed, measured_speed
from peer.forecast.crew_core import parse_crew
from peer.settings.config import PeerConfig
from peer.training.plan.card_memory_core import flops_per_token, run_load
from protocol.errors import ConfigError
from protocol.run.experts_section import Shards
from protocol.run.manifest import default_run_toml, load_run_config

TINY = default_run_toml().replace("dim = 128", "dim = 16").replace("num_layers = 4", "num_layers = 1")


def _file(folder: Path, text: str = TINY) -> Path:
    file = folder / "run.toml"
    file.write_text(text)
    return file


def test_a_machine_measures_its_speed_with_the_model_of_a_run(tmp_path: Path) -> None:
    file = _file(tmp_path)
    found = measured_speed(file, PeerConfig(state_dir=tmp_path, device="cpu", num_threads=1), measured_s=0.0)
    assert found.tokens_per_s > 0
    assert found.flops_per_s == found.tokens_per_s * flops_per_token(run_load(load_run_config(file)))
    assert found.how.startswith("CPU")
    assert list(tmp_path.iterdir()) == [file]


def test_what_it_prints_can_be_pasted_into_a_plan() -> None:
    found = OwnSpeed(12_345.6, 9.9e10, "CPU")
    words = [line.split("--peers ")[1] for line in found.lines(Path("run.toml")) if "--peers" in line]
    assert [group.tokens_per_s or group.flops_per_s for word in words for group in parse_crew(word)] == [
        12_346.0,
        9.9e10,
    ]
    assert json.loads(found.json()) == {"tokens_per_s": 12_345.6, "flops_per_s": 9.9e10, "how": "CPU", "mfu": None}


def test_the_share_of_a_devices_peak_is_told_where_the_peak_is_known() -> None:
    assert "of the device's peak" not in OwnSpeed(1.0, 1e12, "CPU").lines(Path("run.toml"))[0]
    assert OwnSpeed(1.0, 1e12, "H100", 0.414).lines(Path("run.toml"))[0].endswith("1 TFLOP/s, 41% of the device's peak")


@pytest.mark.parametrize(
    ("shards", "words"), [("expert", 'a run with shards = "expert"'), ("pipeline", "see: potluck cut")]
)
def test_a_run_of_another_kind_is_refused_before_anything_is_built(shards: Shards, words: str, tmp_path: Path) -> None:
    file = _file(tmp_path, default_run_toml(shards))
    with pytest.raises(ConfigError, match=words):
        measured_speed(file, PeerConfig(state_dir=tmp_path))
