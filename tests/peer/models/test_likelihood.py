from __future__ import annotations

import pytest
import torch

from peer.models import likelihood
from peer.models.likelihood import likeliest_of_marked, sums_of_marked


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_sums_are_those_of_all_logits_at_the_marked_places(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(likelihood, "chunk_tokens", lambda vocab_size, device: chunk)
    generator = torch.Generator().manual_seed(1)
    x_BTD, head_VD = torch.randn(3, 5, 8, generator=generator), torch.randn(11, 8, generator=generator)
    targets_BT = torch.randint(11, (3, 5), generator=generator)
    marked_BT = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    logs_BT = (x_BTD @ head_VD.t()).double().log_softmax(-1).gather(-1, targets_BT[..., None])[..., 0]
    expected_B = (logs_BT * marked_BT).sum(-1)
    assert torch.allclose(sums_of_marked(x_BTD, head_VD, targets_BT, marked_BT), expected_B, atol=1e-5)


def test_the_likeliest_token_is_one_of_the_tokenizer_s_and_0_where_nothing_is_marked() -> None:
    x_BTD, head_VD = torch.eye(4)[None].repeat(2, 1, 1), torch.eye(4)[[1, 0, 2, 3]]
    marked_BT = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)
    assert likeliest_of_marked(x_BTD, head_VD, marked_BT, 4).tolist() == [0, 0]
    marked_BT[1, 3] = True
    assert likeliest_of_marked(x_BTD, head_VD, marked_BT, 4).tolist() == [0, 3]
    assert likeliest_of_marked(x_BTD, head_VD, marked_BT, 3).tolist()[1] < 3
