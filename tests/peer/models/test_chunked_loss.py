"""The chunked loss beside torch's own cross-entropy: the same numbers in a fraction of the memory."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from peer.models.chunked_loss import CARD_LOGITS, CPU_LOGITS, LEAST_CHUNK_TOKENS, chunk_tokens, chunked_cross_entropy
from tests.peer.pretended_card import PretendedCard

SHAPE = (3, 5)
DIM, VOCAB = 8, 37


def _inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(7)
    x_BTD = torch.randn(*SHAPE, DIM, generator=chance, dtype=torch.float64).to(dtype).requires_grad_()
    head_VD = torch.randn(VOCAB, DIM, generator=chance, dtype=torch.float64).to(dtype).requires_grad_()
    return x_BTD, head_VD, torch.randint(VOCAB, SHAPE, generator=chance)


def _plain(x_BTD: torch.Tensor, head_VD: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    logits_BTV = functional.linear(x_BTD, head_VD)
    return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


@pytest.mark.parametrize("num_tokens", [1, 7, 15, 128])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_loss_and_gradients_are_those_of_cross_entropy_whatever_the_chunk(
    num_tokens: int, dtype: torch.dtype, bound: float
) -> None:
    x_BTD, head_VD, targets_BT = _inputs(dtype)
    x2_BTD, head2_VD, _ = _inputs(dtype)
    loss = chunked_cross_entropy(x_BTD, head_VD, targets_BT, num_tokens)
    expected = _plain(x2_BTD, head2_VD, targets_BT)
    (loss * 3).backward()
    (expected * 3).backward()
    assert float((loss - expected).detach().abs()) <= bound * 4
    assert float((x_BTD.grad - x2_BTD.grad).abs().max()) <= bound
    assert float((head_VD.grad - head2_VD.grad).abs().max()) <= bound


def test_a_frozen_head_or_stream_gets_no_gradient_and_the_other_gets_its_own() -> None:
    x_BTD, head_VD, targets_BT = _inputs()
    chunked_cross_entropy(x_BTD.detach(), head_VD, targets_BT).backward()
    x2_BTD, head2_VD, _ = _inputs()
    chunked_cross_entropy(x2_BTD, head2_VD.detach(), targets_BT).backward()
    x3_BTD, head3_VD, _ = _inputs()
    _plain(x3_BTD, head3_VD, targets_BT).backward()
    assert x_BTD.grad is None
    assert torch.allclose(head_VD.grad, head3_VD.grad, atol=1e-14)
    assert torch.allclose(x2_BTD.grad, x3_BTD.grad, atol=1e-14)


def test_without_gradients_nothing_is_kept() -> None:
    x_BTD, head_VD, targets_BT = _inputs()
    with torch.no_grad():
        loss = chunked_cross_entropy(x_BTD, head_VD, targets_BT)
    assert not loss.requires_grad
    assert float(loss) == pytest.approx(float(_plain(x_BTD, head_VD, targets_BT).detach()))


def test_under_autocast_products_are_narrow_and_the_loss_is_wide() -> None:
    x_BTD, head_VD, targets_BT = _inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = chunked_cross_entropy(x_BTD, head_VD, targets_BT)
    loss.backward()
    assert loss.dtype == head_VD.grad.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(_plain(*_inputs(torch.float32)).detach()), rel=0.02)


def test_at_a_large_vocabulary_it_takes_less_than_a_third_of_the_memory() -> None:
    vocab_size, num_tokens, dim = 32_000, 1024, 16
    x_ND = torch.zeros(1, num_tokens, dim)
    targets_BT = torch.zeros(1, num_tokens, dtype=torch.int64)

    def peak_bytes(chunked: bool) -> int:
        x_BTD, head_VD = x_ND.clone().requires_grad_(), torch.zeros(vocab_size, dim).requires_grad_()
        with PretendedCard() as card:
            loss = (chunked_cross_entropy if chunked else _plain)(x_BTD, head_VD, targets_BT)
            loss.backward()
        return card.peak_bytes

    assert peak_bytes(chunked=True) <= peak_bytes(chunked=False) / 3


def test_a_chunk_has_about_as_many_logits_whatever_the_vocabulary() -> None:
    cpu, card = torch.device("cpu"), torch.device("cuda")
    assert chunk_tokens(32_768, cpu) * 32_768 == CPU_LOGITS
    assert chunk_tokens(32_768, card) * 32_768 == CARD_LOGITS
    assert chunk_tokens(1 << 26, card) == LEAST_CHUNK_TOKENS
