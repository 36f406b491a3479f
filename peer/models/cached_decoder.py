"""A decoder that reads a growing text: each token passes the layers once, and later tokens use its cached keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from averaging.models.family import CachedLayer, LayerCache
from peer.models.decoder import Decoder
from peer.models.frozen_linear import product
from protocol.errors import LocalProtocolError


class GrowingText:
    """The logits after a text that mostly grows by a token. A text that changed otherwise is computed anew."""

    def __init__(self, model: Decoder) -> None:
        self._model = model
        self._layers = [layer for layer in model.layers if isinstance(layer, CachedLayer)]
        self._is_cached = len(self._layers) == len(model.layers)
        self._seen: list[int] = []
        self._caches: list[LayerCache] = []

    def next_logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """(V,) logits of the token after these, of which there is at least one and at most the context's number."""
        if not self._is_cached:
            logits_V: torch.Tensor = self._model(torch.tensor([list(tokens)]))[0, -1]
            return logits_V
        is_continued = 0 < len(self._seen) == len(tokens) - 1 and list(tokens[:-1]) == self._seen
        if not is_continued:
            self._caches = [LayerCache() for _ in self._layers]
        logits_V = self._extended(tokens[-1:] if is_continued else tokens)
        self._seen = list(tokens)
        return logits_V

    def _extended(self, new: Sequence[int]) -> torch.Tensor:
        model = self._model
        if model.embed is None or model.norm is None:
            raise LocalProtocolError("a text for a stage", "a whole model")
        x_BTD: torch.Tensor = model.embed(torch.tensor([list(new)]))
        for layer, cache in zip(self._layers, self._caches, strict=True):
            x_BTD = layer.extend(x_BTD, model.table, cache)
        head = model.embed if model.head is None else model.head
        return product(model.norm(x_BTD[:, -1:]), head.weight)[0, 0]
