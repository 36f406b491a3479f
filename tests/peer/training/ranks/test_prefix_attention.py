from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from peer.training.ranks.prefix_attention import prefix_attention


def _random(heads: int, tokens: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    made = torch.randn(2, heads, tokens, 16, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("earlier", [0, 1, 40])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_chunk_sees_earlier_tokens_and_its_own_up_to_each_as_with_a_mask(
    kv_heads: int, earlier: int, dtype: torch.dtype
) -> None:
    q, k, v = _random(4, 24, 1, dtype), *(_random(kv_heads, earlier + 24, seed, dtype) for seed in (2, 3))
    slope = torch.randn(2, 4, 24, 16, generator=torch.Generator().manual_seed(4)).to(dtype)
    mixed = prefix_attention(q, k, v)
    found = (mixed, *torch.autograd.grad(mixed, (q, k, v), slope))
    mask = torch.ones(24, earlier + 24, dtype=torch.bool).tril(earlier)
    plain = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    wanted = (plain, *torch.autograd.grad(plain, (q, k, v), slope))
    near = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.1}[dtype]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=near, rtol=near)
        assert one.dtype == dtype


def test_no_tensor_of_queries_times_keys_is_kept() -> None:
    q, k, v = (_random(heads, tokens, heads, torch.float32) for heads, tokens in ((4, 64), (2, 256), (2, 256)))
    kept: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        prefix_attention(q, k, v)
    assert max(kept) == k.numel()
