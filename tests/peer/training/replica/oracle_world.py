"""Tiny models of every kind of peer, each as a replica and as plain torch with all logits at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final, Literal
from unittest import mock

import torch
from torch.nn import functional

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.chunked_loss import chunked_cross_entropy
from peer.models.decoder import Decoder, Spine, load_flat
from peer.models.mixture import MixtureDecoder
from peer.models.stage_model import StageDecoder
from peer.training.plan.card_plan import FLOAT32, CardPlan
from peer.training.replica.replica import Replica
from protocol.run.training_sections import InnerSection
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_config import model_schema
from protocol.tensors.stage_schema import StageMap, stage_schema
from protocol.tensors.tensor_schema import TensorSchema

Kind = Literal["data", "expert", "stage"]
KINDS: Final[tuple[Kind, ...]] = ("data", "expert", "stage")

MODEL: Final = LlamaConfig(
    vocab_size=61, dim=16, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=24, context_tokens=16, is_tied=False
)
MIXTURE: Final = MixtureConfig(num_experts=3, ffn_dim=12)
STAGES: Final = StageMap(MODEL, (1, 1))
SEQUENCES: Final = 4
CLIP: Final = 0.5


@dataclass(frozen=True)
class Oracle:
    """A replica of one kind and a step's work for it."""

    kind: Kind
    replica: Replica

    def loss(self, begin: int, stop: int, step: int = 0) -> torch.Tensor:
        """The mean over these sequences of a step, as a peer of this kind computes it."""
        return self._of(begin, stop, step, all_logits=False)

    def plain_loss(self, step: int = 0) -> torch.Tensor:
        """The mean over the whole step by torch's cross-entropy of all logits."""
        return self._of(0, SEQUENCES, step, all_logits=True)

    def _of(self, begin: int, stop: int, step: int, *, all_logits: bool) -> torch.Tensor:
        model, tokens_BT = self.replica.model, _tokens(step)[begin:stop]
        arrived: torch.Tensor = tokens_BT[:, :-1]
        targets_BT = tokens_BT[:, 1:]
        if isinstance(model, StageDecoder):
            arrived, shared = _stream(step)[begin:stop], (0,)
        else:
            shared = (1,) if isinstance(model, MixtureDecoder) else ()
        if all_logits:
            return functional.cross_entropy(model(arrived, *shared).flatten(0, 1), targets_BT.flatten())
        found: torch.Tensor = model.loss(arrived, targets_BT, *shared)
        return found

    def gradients(self, chunk: int, micro_batch: int, step: int = 0) -> list[torch.Tensor]:
        """Of every tensor, summed over micro-batches of a step."""
        self.replica.optimizer.zero_grad()
        chunked = partial(chunked_cross_entropy, num_tokens=chunk)
        with mock.patch("peer.models.decoder.chunked_cross_entropy", chunked):
            for begin in range(0, SEQUENCES, micro_batch):
                loss = self.loss(begin, begin + micro_batch, step) * (micro_batch / SEQUENCES)
                self.replica.backward(loss)
        return self._taken()

    def plain_gradients(self, step: int = 0) -> list[torch.Tensor]:
        """Of every tensor, by torch alone."""
        self.replica.optimizer.zero_grad()
        self.plain_loss(step).backward()
        return self._taken()

    def theta(self) -> torch.Tensor:
        """(N,), a copy."""
        return torch.cat([parameter.detach().flatten() for parameter in self.replica.parameters])

    def _taken(self) -> list[torch.Tensor]:
        found = [parameter.grad for parameter in self.replica.parameters]
        return [torch.zeros(()) if grad is None else grad.clone() for grad in found]


def oracle(kind: Kind, plan: CardPlan = FLOAT32, *, optimizer: str = "adamw") -> Oracle:
    """Of this kind, always with the same parameters."""
    model, schema = _model(kind)
    load_flat(model, schema, genesis_anchor(schema, 1) * 3)
    inner = InnerSection.model_validate(
        {"optimizer": optimizer, "learning_rate": 0.01, "batch_tokens": 64, "clip_norm": CLIP}
    )
    return Oracle(kind, Replica(model, schema, inner, plan))


def _model(kind: Kind) -> tuple[Spine, TensorSchema]:
    if kind == "data":
        return Decoder(MODEL), model_schema(MODEL)
    if kind == "expert":
        return MixtureDecoder(MODEL, MIXTURE, (0, 1)), held_units(MODEL, MIXTURE, (0, 1)).whole
    return StageDecoder(STAGES, 1), stage_schema(STAGES, 1)


def _tokens(step: int) -> torch.Tensor:
    shape = (SEQUENCES, MODEL.context_tokens + 1)
    return torch.randint(MODEL.vocab_size, shape, generator=torch.Generator().manual_seed(step))


def _stream(step: int) -> torch.Tensor:
    shape = (SEQUENCES, MODEL.context_tokens, MODEL.dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(step))
