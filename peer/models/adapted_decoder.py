"""A decoder of any family whose own weights are frozen, with an adapter beside some of its matrices.

Only the adapter's matrices are parameters. Their names and shapes are those of protocol/tensors/adapter_schema.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from averaging.data.token_reader import TokenReader
from averaging.models.family import blocks_of
from peer.models.decoder import Decoder
from peer.models.frozen_linear import AdaptedLinear, FrozenLinear, FrozenTable, in_8_bits
from protocol.errors import LocalProtocolError
from protocol.tensors.adapter_schema import AdapterConfig
from protocol.tensors.model_config import ModelConfig, layer_of, model_schema

ReadBase = Callable[[str], torch.Tensor]
"""Returns a tensor of the base by its name, as bfloat16, in its shape."""


def base_of(shards: Sequence[Path], config: ModelConfig) -> ReadBase:
    """Reads the base from its shards, which are mapped. Each call copies one tensor into memory.

    Raises:
        LocalProtocolError: the shards do not make up the model.
    """
    reader, schema = TokenReader(shards), model_schema(config)
    if reader.num_tokens != schema.num_elements:
        raise LocalProtocolError(f"a base of {reader.num_tokens} values", f"{schema.num_elements}, as the model has")
    shapes = {spec.name: spec.shape for spec in schema.tensors}
    offsets = schema.offsets

    def read(name: str) -> torch.Tensor:
        bits = reader.read(offsets[name], torch.Size(shapes[name]).numel())
        return torch.from_numpy(bits).view(torch.bfloat16).view(shapes[name])

    return read


def adapted_decoder(config: ModelConfig, adapter: AdapterConfig, read: ReadBase, device: torch.device) -> Decoder:
    """The decoder on a device, with its base as `read` gives it. The adapter's values are to be loaded."""
    with torch.device("meta"):
        model = Decoder(config)
    model.table = blocks_of(config).table(config).to(device)
    _freeze(model, "", _Freezing(adapter, frozenset(adapter.parts(config)), read, device))
    return model


class _Freezing:
    """Makes frozen modules of those of a decoder without values."""

    def __init__(self, adapter: AdapterConfig, parts: frozenset[str], read: ReadBase, device: torch.device) -> None:
        self._adapter, self._parts, self._read, self._device = adapter, parts, read, device

    def value(self, name: str) -> torch.Tensor:
        """A tensor of the base, on the device."""
        return self._read(name).to(self._device)

    def linear(self, name: str, module: nn.Linear) -> FrozenLinear:
        """A frozen linear map, with an adapter if it is a target."""
        weight_OI = self.value(f"{name}.weight")
        bias_O = None if module.bias is None else self.value(f"{name}.bias")
        if layer_of(name) is None:
            return FrozenLinear(weight_OI, bias_O)
        scales_O1 = None
        if self._adapter.base == "int8":
            weight_OI, scales_O1 = in_8_bits(weight_OI)
        if name.split(".", 2)[-1] not in self._parts:
            return FrozenLinear(weight_OI, bias_O, scales_O1)
        return AdaptedLinear(weight_OI, bias_O, scales_O1, self._adapter.rank, self._adapter.scale)


def _freeze(module: nn.Module, prefix: str, freezing: _Freezing) -> None:
    for name in [name for name, _ in module.named_parameters(recurse=False)]:
        value = freezing.value(f"{prefix}{name}")
        delattr(module, name)
        module.register_buffer(name, value, persistent=False)
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, freezing.linear(f"{prefix}{name}", child))
        elif isinstance(child, nn.Embedding):
            setattr(module, name, FrozenTable(freezing.value(f"{prefix}{name}.weight")))
        else:
            _freeze(child, f"{prefix}{name}.", freezing)
