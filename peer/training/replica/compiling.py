"""Runs layers compiled by torch: one layer's forward is compiled, and used for all layers of its kind.

Importing torch's compiler takes seconds, so that it happens with the first layer that runs compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, Final, cast

import torch
from torch import nn

from averaging.models.family import LayerCall, call_layer

MOST_VARIANTS: Final = 64
"""Variants of one layer that are compiled: with and without gradients, and for each expert held here. Beyond them torch would run
layers without compiling and not say so.
"""


class CompiledCall:
    """Runs layers compiled, each for the shapes it gets. May raise whatever the compiler raises, at the first call with a shape
    and at its first backward pass.

    Args:
        call: what is compiled.
    """

    def __init__(self, call: LayerCall = call_layer) -> None:
        self._call = call

    def __call__(self, layer: nn.Module, x_BTD: torch.Tensor, *shared: object) -> torch.Tensor:
        """As `call_layer`."""
        return _compiled(cast(Hashable, self._call))(layer, x_BTD, *shared)


@cache
def _compiled(call: Hashable) -> Callable[..., torch.Tensor]:
    import torch._dynamo.config as settings

    # releases differ in the name
    limit = "recompile_limit" if hasattr(settings, "recompile_limit") else "cache_size_limit"
    cast(Any, settings).__setattr__(limit, MOST_VARIANTS)
    return cast(Callable[..., torch.Tensor], torch.compile(cast(LayerCall, call), dynamic=False))
