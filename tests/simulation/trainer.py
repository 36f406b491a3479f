"""A trainer in virtual time: moves its parameters a little at each step, and counts tokens as the real one does."""

from __future__ import annotations

import random

import torch
import trio

from averaging.network.seams import Snapshot, TrainerProgress

STEP_TOKENS = 100


class SimulatedTrainer:
    """Trains `tokens_per_s` in virtual time while `run` runs. Every step adds a fixed pseudo-random direction."""

    def __init__(self, num_elements: int, tokens_per_s: float, chooser: random.Random) -> None:
        self._theta_N = torch.zeros(num_elements, dtype=torch.float32)
        self._step_s = STEP_TOKENS / tokens_per_s
        self._tokens_per_s = tokens_per_s
        self._random = chooser
        self._ready = 0
        self._trained = 0
        self.loads = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(self._step_s)
            direction = [self._random.uniform(-0.01, 0.01) for _ in range(self._theta_N.numel())]
            self._theta_N = torch.add(self._theta_N, torch.tensor(direction, dtype=torch.float32))
            self._ready += STEP_TOKENS
            self._trained += STEP_TOKENS

    async def load(self, anchor_N: torch.Tensor, *, schedule_tokens: int) -> None:
        """theta <- anchor."""
        self._theta_N = anchor_N.clone()
        self._ready = 0
        self.loads += 1

    async def snapshot(self) -> Snapshot:
        """At the next step boundary."""
        await trio.sleep(self._step_s)
        return Snapshot(self._theta_N.clone(), self._ready, self._ready // STEP_TOKENS, self._trained // STEP_TOKENS)

    async def shift(self, shift_N: torch.Tensor, *, credited_tokens: int, schedule_tokens: int) -> None:
        """theta <- theta + shift."""
        self._theta_N = torch.add(self._theta_N, shift_N)
        self._ready -= credited_tokens

    async def set_anchor(self, anchor_N: torch.Tensor) -> None:
        """Nothing to bring back here: a simulated worker dies with its peer."""

    async def evaluate(self, anchor_N: torch.Tensor) -> float:
        """Mean square of the anchor."""
        return float(torch.mean(torch.mul(anchor_N, anchor_N)))

    def progress(self) -> TrainerProgress:
        """Counters as of now."""
        return TrainerProgress(self._ready, self._trained, 1.0, self._tokens_per_s, 0, "training", "")
