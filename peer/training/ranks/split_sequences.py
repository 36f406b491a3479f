"""Lets the ranks of a replica share the tokens of each sequence: attention and positions become those of one rank's tokens."""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as distributed
from torch import nn

from averaging.models.attention import AttendingLayer, Attention
from peer.models.decoder import Spine
from peer.training.plan.layout import Mesh
from peer.training.plan.split_core import context_place, token_spans, why_no_context
from peer.training.ranks.gathered_attention import GatheredAttention
from protocol.errors import LocalProtocolError

RING_TOKENS: Final = 1 << 15
"""Tokens of a rank from which on cards pass keys and values around instead of holding those of the whole sequence."""


class SharedSequences:
    """One rank's share of each sequence.

    Args:
        places: (t,) int64, the positions of its tokens, on the device of the model.
    """

    def __init__(self, places: torch.Tensor) -> None:
        self.places = places

    def of(self, whole_BT: torch.Tensor) -> torch.Tensor:
        """This rank's tokens (B, t) of whole sequences (B, T); of targets likewise. All ranks have equally many, so the mean over the
        whole sequences is the mean of the ranks' means.
        """
        return whole_BT.index_select(1, self.places)


def split_sequences(model: Spine, mesh: Mesh, rank: int, group: distributed.ProcessGroup) -> SharedSequences:
    """Make the model that of a rank that has a share of each sequence. Its losses are then means over the rank's own tokens.

    All ranks of the group must make the same passes: layers exchange keys and values, in both passes and where a layer is computed
    again. The model takes whole contexts only, cut by what is returned.

    Args:
        model: on its device, with its table of positions there. Its parameters may be split already.
        group: the ranks that share this one's sequences, by `context_place`.

    Raises:
        LocalProtocolError: the model cannot be split so; `why_no_context` tells it before.
    """
    config = model.config
    if why := why_no_context(config, mesh.context):
        raise LocalProtocolError(why, "a split that the model allows", "choose another with --split")
    layers = [_attending(layer) for layer in model.layers_in_order()]
    spans = token_spans(context_place(mesh, rank), mesh.context, config.context_tokens)
    places = torch.tensor([*spans[0], *spans[1]], device=model.table.device)
    if len(model.table):
        model.table = model.table.index_select(0, places)
    attention = _attention(model.table.device, config.context_tokens // mesh.context, group)
    for layer in layers:
        layer.attention = attention
    return SharedSequences(places)


def is_ring(device_type: str, own_tokens: int) -> bool:
    """Whether keys and values go around the ranks, for so many tokens of one; else all of them are gathered. Only cards have kernels
    for it.
    """
    return device_type == "cuda" and own_tokens >= RING_TOKENS


def _attention(device: torch.device, own_tokens: int, group: distributed.ProcessGroup) -> Attention:
    if not is_ring(device.type, own_tokens):
        return GatheredAttention(group)
    from peer.training.ranks.ring_attention import RingAttention  # imports much that others do not need

    return RingAttention(group)


def _attending(layer: nn.Module) -> AttendingLayer:
    if not isinstance(layer, AttendingLayer):
        raise LocalProtocolError(f"a layer {type(layer).__name__} without replaceable attention", "one with it")
    return layer
