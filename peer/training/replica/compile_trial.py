"""Tries the compiler: `python -m peer.training.replica.compile_trial TASK`, started by peer/training/replica/compiler.py.

It compiles one layer of a model, and ends with 0 if the layer gives the eager result. Its last line says why not. A compiler may
hang, crash, or compute something else; here it harms nobody. The process ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import nullcontext
from typing import Final

import torch

from averaging.models.family import LayerCall, blocks_of, call_layer
from peer.training.plan.card_plan import Precision
from peer.training.replica.compiler import one_line
from peer.training.replica.compiling import CompiledCall
from protocol.tensors.model_config import ModelConfig
from protocol.tensors.model_families import parse_model

TOKENS: Final = 16
MOST_ERROR: Final[dict[Precision, float]] = {"fp32": 1e-4, "bf16": 3e-2, "fp16": 1e-2}
"""Of outputs and gradients, as a share of their norm. Compiled and eager code round in another order."""

DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def error_of(call: LayerCall, model: ModelConfig, precision: Precision, device: torch.device) -> float:
    """Largest error of a layer's output and gradients with `call`, as a share of their norms in eager mode."""
    torch.manual_seed(1)
    blocks = blocks_of(model)
    layer, table = blocks.layer(model, 0).to(device), blocks.table(model).to(device)
    x_BTD = torch.randn(1, min(TOKENS, model.context_tokens), model.dim, device=device)
    eager, found = (_passed(each, layer, x_BTD, table, precision, device) for each in (call_layer, call))
    return max(
        float((one.float() - other.float()).norm() / other.float().norm().clamp(min=1e-12))
        for one, other in zip(found, eager, strict=True)
    )


def _passed(
    call: LayerCall,
    layer: torch.nn.Module,
    x_BTD: torch.Tensor,
    table: torch.Tensor,
    precision: Precision,
    device: torch.device,
) -> list[torch.Tensor]:
    arrived = x_BTD.clone().requires_grad_()
    parameters = [arrived, *layer.parameters()]
    dtype = DTYPES.get(precision)
    with torch.autocast(device.type, dtype=dtype) if dtype is not None else nullcontext():
        left = call(layer, arrived if dtype is None else arrived.to(dtype), table)
    return [left.detach(), *torch.autograd.grad(left, parameters, torch.ones_like(left))]


def _end_with_input() -> None:
    # not by sys.stdin, whose lock this thread would still hold when the interpreter ends
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def main() -> int:
    """Exit code 0 if the compiled layer gives the eager result."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    task = json.loads(sys.argv[1])
    model = parse_model({"family": task["family"], **task["model"]})
    precision: Precision = task["precision"]
    try:
        error = error_of(CompiledCall(), model, precision, torch.device(task["device"]))
    except Exception as problem:  # noqa: BLE001 - a compiler may fail in any way
        print(one_line(problem))
        return 1
    if not error <= MOST_ERROR[precision]:
        print(f"a compiled layer differs from the eager one by {error:.2g} of its norm")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
