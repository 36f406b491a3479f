"""AdamW with moments in blocks of 8 bits (2110.02861), by torchao: about 2 bytes a value where float32 takes 8.

Only runs whose manifest allows it train this way (`[inner] moments`), and only where a compiler works, which torchao's step needs.
Parameters of fewer than 4,096 values keep float32 moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import torch

from peer.training.optimizers.adamw import EPSILON, MOMENTS_EACH, ParameterGroup
from protocol.errors import LocalProtocolError, MachineError

BYTES_PER_VALUE: Final = 2.03
"""Two codes of a byte, and two scales of float32 for each block of 256 values."""


class AdamWInt8:
    """Decoupled weight decay over groups of parameters, in place, with moments in 8 bits.

    Raises:
        MachineError: torchao is not installed.
    """

    def __init__(self, groups: Sequence[ParameterGroup], *, beta1: float, beta2: float) -> None:
        self._groups = tuple(groups)
        self._parameters = [parameter for group in groups for parameter in group.parameters]
        wanted = [
            {"params": list(group.parameters), "weight_decay": group.weight_decay}
            for group in groups
            if group.parameters
        ]
        self._torchao: Any = _torchao().AdamW8bit(wanted, lr=1.0, betas=(beta1, beta2), eps=EPSILON)

    @property
    def has_moments(self) -> bool:
        """Whether a step was made, which creates the moments."""
        return bool(self._torchao.state)

    @property
    def moments_bytes(self) -> int:
        """Bytes of the moments once they exist."""
        return int(BYTES_PER_VALUE * sum(parameter.numel() for parameter in self._parameters))

    @property
    def step_bytes(self) -> int:
        """Bytes that a step takes for a moment: none beside one parameter's, which the compiled step keeps in registers."""
        return 0

    def zero_grad(self) -> None:
        """Discard the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def moments(self) -> list[torch.Tensor]:
        """For each parameter in order its first moment and its second in float32, and a scalar that counts its steps; none before
        the first step.
        """
        if not self.has_moments:
            return []
        found: list[torch.Tensor] = []
        for parameter in self._parameters:
            state = self._state(parameter)
            found += [_wide(state["exp_avg"]), _wide(state["exp_avg_sq"]), state["step"].float()]
        return found

    def owners(self) -> list[torch.nn.Parameter]:
        """The parameter of each moment."""
        return [parameter for parameter in self._parameters for _ in range(MOMENTS_EACH)]

    @torch.no_grad()
    def load_moments(self, moments: Sequence[torch.Tensor]) -> None:
        """Continue from `moments`, of this peer or another.

        Raises:
            LocalProtocolError: they do not fit the number and shapes of the parameters.
        """
        if len(moments) not in (0, 3 * len(self._parameters)):
            raise LocalProtocolError(f"{len(moments)} moments", f"none, or {3 * len(self._parameters)}")
        self._torchao.state.clear()
        for place, parameter in enumerate(self._parameters if moments else []):
            first, second, num_steps = moments[3 * place : 3 * place + 3]
            if first.shape != parameter.shape or second.shape != parameter.shape:
                raise LocalProtocolError(f"a moment of shape {tuple(first.shape)}", f"{tuple(parameter.shape)}")
            state = self._state(parameter)
            state["exp_avg"].copy_(first.to(parameter.device))
            state["exp_avg_sq"].copy_(second.to(parameter.device))
            state["step"].fill_(float(num_steps))

    def step(self, learning_rate: float) -> None:
        """Move every parameter that has a gradient."""
        for group in self._torchao.param_groups:
            group["lr"].fill_(learning_rate)
        self._torchao.step()

    def _state(self, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        """The parameter's moments, made as torchao makes them at its first step if they do not exist yet."""
        state: dict[str, torch.Tensor] = self._torchao.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = self._torchao._new_buffer(parameter, True)
            state["exp_avg_sq"] = self._torchao._new_buffer(parameter, False)
        return state


def _wide(moment: torch.Tensor) -> torch.Tensor:
    """Of a small parameter as it is, else from its codes."""
    return moment if type(moment) is torch.Tensor else moment.dequantize()


def _torchao() -> Any:
    try:
        return import_module("torchao.optim")
    except ModuleNotFoundError as error:
        raise MachineError(
            "torchao is not installed", "it, for moments in 8 bits", "pip install 'potluck-train[small]'"
        ) from error
    except (ImportError, AttributeError) as error:  # the latter: it uses what an older torch lacks
        raise MachineError(
            f"torchao does not fit torch {torch.__version__} ({error})",
            "two releases that go together",
            "pip install --upgrade 'potluck-train[small]'",
        ) from error
