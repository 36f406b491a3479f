"""The shape of a unit's rounds, to explain a loss: do deltas agree over members and over rounds, and how much of them arrives.

With d_m a member's delta, D their mean, U the update that the outer step gets, n values of a unit; sums are over the rounds so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

MEANS = ("rho", "spread", "kept", "likeness", "residual")
VECTORS = ("last_n", "true_n", "arrived_n")


@dataclass
class RoundTrace:
    """The sums of one unit's rounds.

    Attributes:
        counts: rounds behind each of the means.
        sums: of `rho`, the cosine of D with the D before it; `spread`, the members' mean |d_m| over |D|, from 1 where all agree to
            sqrt(M) where nothing is common; `kept`, |U| / |D|; `likeness`, the cosine of U and D; `residual`, what error feedback
            holds back over the members' |d_m|.
        last_n, true_n, arrived_n: (n,) float32, the last D, the sum of D and the sum of U.
    """

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MEANS, 0))
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(MEANS, 0.0))
    last_n: torch.Tensor | None = None
    true_n: torch.Tensor | None = None
    arrived_n: torch.Tensor | None = None

    def add(self, deltas_Mn: torch.Tensor, update_n: torch.Tensor, left_over: float) -> None:
        """One round: (M, n) deltas, the (n,) update, and the members' mean norm of residuals."""
        mean_n = deltas_Mn.mean(0)
        length = float(deltas_Mn.norm(dim=1).mean())
        size = float(mean_n.norm())
        if self.last_n is not None:
            self._count("rho", _cosine(mean_n, self.last_n))
        if size > 0.0 and length > 0.0:
            self._count("spread", length / size)
            self._count("kept", float(update_n.norm()) / size)
            self._count("likeness", _cosine(update_n, mean_n))
            self._count("residual", left_over / length)
        self.last_n = mean_n
        self.true_n = mean_n.clone() if self.true_n is None else self.true_n + mean_n
        self.arrived_n = update_n.clone() if self.arrived_n is None else self.arrived_n + update_n

    def _count(self, name: str, value: float) -> None:
        self.counts[name] += 1
        self.sums[name] += value

    def figures(self) -> dict[str, float]:
        """The means, and `arrived`: how much of the sum of D the sum of U has along it."""
        found = {name: round(self.sums[name] / self.counts[name], 4) for name in MEANS if self.counts[name]}
        if self.true_n is not None and self.arrived_n is not None:
            square = float(self.true_n @ self.true_n)
            found["arrived"] = round(float(self.arrived_n @ self.true_n) / square, 4) if square else 0.0
        return found


def _cosine(one_n: torch.Tensor, other_n: torch.Tensor) -> float:
    product = float(one_n.norm() * other_n.norm())
    return float(one_n @ other_n) / product if product else 0.0
