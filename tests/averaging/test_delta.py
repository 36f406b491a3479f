from __future__ import annotations

import torch

from averaging.delta import pseudo_gradient


def test_subtracting_the_whole_delta_from_the_anchor_gives_the_local_parameters() -> None:
    anchor_N, theta_N = torch.tensor([4.0, -2.0]), torch.tensor([1.0, 3.0])
    delta_N = pseudo_gradient(anchor_N, theta_N)
    assert delta_N.tolist() == [3.0, -5.0]
    assert torch.equal(anchor_N - delta_N, theta_N)
