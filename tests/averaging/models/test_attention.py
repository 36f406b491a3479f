"""Attention with a mask: groups of queries share keys and values, and no device copies them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from averaging.models import attention
from averaging.models.attention import WindowedAttention, documents_of, isolated_attention

BATCH, TOKENS, SIZE = 2, 24, 8
PLACES_BT = torch.stack([torch.arange(TOKENS) % 7, torch.arange(TOKENS) % 24])

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Kind = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
KINDS: dict[str, Kind] = {
    "isolated": lambda q, k, v: isolated_attention(q, k, v, documents_of(PLACES_BT)),
    "isolated in a window": lambda q, k, v: isolated_attention(q, k, v, documents_of(PLACES_BT), 5),
    "in a window": WindowedAttention(5),
}


def _inputs(heads: int, kv_heads: int) -> Inputs:
    generator = torch.Generator().manual_seed(heads)
    sizes = (heads, kv_heads, kv_heads)
    q, k, v = (torch.randn(BATCH, size, TOKENS, SIZE, generator=generator, requires_grad=True) for size in sizes)
    return q, k, v


def _found(kind: Kind, heads: int, kv_heads: int) -> list[torch.Tensor]:
    inputs = _inputs(heads, kv_heads)
    mixed = kind(*inputs)
    return [mixed.detach(), *torch.autograd.grad(mixed.square().sum(), inputs)]


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (4, 1)], ids=["one to one", "grouped", "one for all"])
@pytest.mark.parametrize("kind", KINDS)
def test_devices_without_a_kernel_for_groups_find_the_same_and_copy_no_keys_and_values(
    monkeypatch: pytest.MonkeyPatch, kind: str, heads: tuple[int, int]
) -> None:
    expected = _found(KINDS[kind], *heads)
    plain, asked = functional.scaled_dot_product_attention, list[tuple[int, int, int]]()

    def watched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> torch.Tensor:
        asked.append((q.shape[1], k.shape[1], k.untyped_storage().nbytes()))
        return plain(q, k, v, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(attention, "GROUPED_WITH_MASK", frozenset())
    for found, value in zip(_found(KINDS[kind], *heads), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-5)
    kv_bytes = 4 * BATCH * heads[1] * TOKENS * SIZE
    assert set(asked) == {(heads[1], heads[1], kv_bytes)}, "as many heads, and the values as they lie"


def test_each_query_head_reads_the_keys_of_its_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "GROUPED_WITH_MASK", frozenset())
    q, k, v = _inputs(6, 2)
    repeated = (each.repeat_interleave(3, dim=1) for each in (k, v))
    sees = documents_of(PLACES_BT).sees_B1TT
    expected = functional.scaled_dot_product_attention(q, *repeated, attn_mask=sees)
    torch.testing.assert_close(isolated_attention(q, k, v, documents_of(PLACES_BT)), expected, rtol=1e-5, atol=1e-5)
