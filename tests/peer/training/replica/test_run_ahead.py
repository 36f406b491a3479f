from __future__ import annotations

import torch

from peer.training.replica.run_ahead import MOST_AHEAD, RunAhead


class _Result(torch.Tensor):
    waited: list[float]

    def item(self) -> float:
        value = float(self.as_subclass(torch.Tensor))
        _Result.waited.append(value)
        return value


def _result(value: float) -> torch.Tensor:
    return torch.tensor(value).as_subclass(_Result)


def test_it_waits_for_the_micro_batch_before_the_last_and_for_no_newer_one() -> None:
    _Result.waited, ahead = [], RunAhead()
    for number in range(5):
        ahead.wait()
        assert _Result.waited == [float(older) for older in range(max(0, number - MOST_AHEAD + 1))]
        ahead.note(_result(float(number)))


def test_a_new_step_waits_for_nothing_of_the_last() -> None:
    _Result.waited, ahead = [], RunAhead()
    ahead.note(_result(1.0))
    ahead.note(_result(2.0))
    ahead.clear()
    ahead.wait()
    assert _Result.waited == []
