"""The measurements and output of `potluck cut`, with a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from peer.pipeline.stage.stage_costs import TRIES, measured_costs, stages_lines, wall_s
from protocol.errors import ConfigError, MachineError
from protocol.run.default_run import default_toml
from protocol.run.manifest import parse_run_config

RUN = parse_run_config(default_toml("pipeline"))
CPU = torch.device("cpu")


def _clock(*seconds: float) -> tuple[Callable[[Callable[[], None], torch.device], float], list[int]]:
    """Says of each part what it took, and now and then a hundred times that; and how many passes it was asked about."""
    calls = list[int]()

    def timed(work: Callable[[], None], _device: torch.device) -> float:
        work()
        part, number = divmod(len(calls), TRIES)
        calls.append(part)
        return seconds[part] * (100.0 if number < TRIES // 2 else 1.0)

    return timed, calls


def test_costs_are_seconds_a_token_of_each_part_and_a_few_slow_passes_change_nothing() -> None:
    timed, calls = _clock(0.5, 4.0, 2.0)
    costs = measured_costs(RUN.model, (2, 4), CPU, timed)
    assert (costs.embed, costs.layer, costs.head) == (0.5 / 8, 4.0 / 8, 2.0 / 8)
    assert len(calls) == 3 * TRIES


def test_by_the_clock_every_part_takes_time() -> None:
    costs = measured_costs(RUN.model, (1, 8), CPU, wall_s)
    assert min(costs.embed, costs.layer, costs.head) > 0.0


def test_a_cut_that_is_uneven_by_what_was_measured_is_told_with_a_better_one(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(default_toml("pipeline").replace("stages = 3   ", 'layers = "1, 1, 2"   '))
    before = path.read_bytes()
    lines = stages_lines(path, "cpu", (), 2, _clock(0.0, 1.0, 2.0)[0])
    assert lines[1].startswith('now:  layers = "1, 1, 2"')
    assert lines[2].startswith('best: layers = "2, 2, 0"')
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "peer_gb", "says"),
    [
        (default_toml(), (), 'run.shards = "data"; expected "pipeline"'),
        (default_toml("pipeline"), (0.5, 0.5, 0.5, 0.5), "4 peers with 2.00 GB of memory together"),
        (default_toml("pipeline"), (4.0, float("nan")), "--peer-gb 4, nan; expected gigabytes"),
    ],
)
def test_what_cannot_be_cut_is_one_line(tmp_path: Path, text: str, peer_gb: tuple[float, ...], says: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        stages_lines(path, "cpu", peer_gb, 2, _clock(1.0, 1.0, 1.0)[0])
    assert says in refused.value.one_line()
    assert "\n" not in refused.value.one_line()


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(default_toml("pipeline"))
    with pytest.raises(MachineError, match="device mps is not available"):
        stages_lines(path, "mps", (), 2, _clock(1.0, 1.0, 1.0)[0])
