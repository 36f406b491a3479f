from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from averaging.data.assignment import window_starts
from averaging.data.packing.packing import Packing, pack
from averaging.data.sources.texts import Text
from averaging.data.token_reader import TokenReader
from averaging.data.tokenizer import ByteTokenizer
from peer.models.decoder import Decoder
from peer.models.mixture import MixtureDecoder
from peer.training.plan.card_plan import CardPlan, Checkpointing
from peer.training.replica.replica import Replica
from peer.training.replica.text_batches import Batches
from protocol.run.training_sections import InnerSection
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_config import model_schema
from protocol.tensors.tensor_schema import TensorSchema
from tests.peer.training_world import MODEL, training_plan

WINDOW = 5
STARTS = (7, 0, 31, 2, 90, 11)


def _parts(starts: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    return [starts[begin : begin + size] for begin in range(0, len(starts), size)]


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("size", [1, 2, 6])
def test_a_step_reads_its_windows_in_order_whatever_the_micro_batch(tmp_path: Path, is_ahead: bool, size: int) -> None:
    reader = TokenReader(training_plan(tmp_path).train_shards, 2)
    batches = Batches(torch.device("cpu"), WINDOW, is_ahead=is_ahead)
    found = list(batches.of_step(reader, _parts(STARTS, size)))
    assert [len(batch.tokens_BT) for batch in found] == [size] * (len(STARTS) // size)
    assert torch.cat([batch.tokens_BT for batch in found]).tolist() == [
        reader.read(start, WINDOW).tolist() for start in STARTS
    ]


def test_a_step_that_is_given_up_leaves_nothing_for_the_next(tmp_path: Path) -> None:
    reader = TokenReader(training_plan(tmp_path).train_shards, 2)
    batches = Batches(torch.device("cpu"), WINDOW, is_ahead=True)
    next(batches.of_step(reader, _parts(STARTS, 2)))
    found = torch.cat([batch.tokens_BT for batch in batches.of_step(reader, _parts(STARTS[::-1], 2))])
    assert found.tolist() == [reader.read(start, WINDOW).tolist() for start in STARTS[::-1]]


CONTEXT = 24
DOCUMENTS = [
    b"a short one",
    b"q:1 a:2",
    b"a much longer document than a window has tokens in it",
    b"x",
    b"the end of it",
]
MIXTURE = MixtureConfig(num_experts=2, ffn_dim=8)
SMALL = MODEL.model_copy(update={"context_tokens": CONTEXT, "num_layers": 2})


def _marked(folder: Path, *, has_starts: bool) -> TokenReader:
    """Documents of which every second byte or so counts."""
    texts = []
    for number in range(30):
        data = DOCUMENTS[number % len(DOCUMENTS)] + b" %d" % number
        spans = tuple((begin, begin + 2) for begin in range(number % 3, len(data) - 2, 4))
        texts.append(Text(data, "train", counted=spans))
    packing = Packing(4096, "text", "none", has_counts=True, has_starts=has_starts)
    manifest = pack([*texts, replace(texts[0], split="heldout")], ByteTokenizer(), folder, packing)
    paths = [folder / entry.sha256 for entry in manifest.part("train")]
    return TokenReader(paths, 2, has_counts=True, has_starts=has_starts)


def _one_by_one(model: Decoder | MixtureDecoder, reader: TokenReader, starts: tuple[int, ...]) -> torch.Tensor:
    """The mean over the tokens that count, of documents that were never packed together."""
    losses, count = [], 0
    for start in starts:
        window = torch.from_numpy(reader.read(start, CONTEXT + 1).astype(np.int64))
        counted, begins = reader.counted(start, CONTEXT + 1), reader.begins(start, CONTEXT + 1)
        cuts = sorted({0, *np.flatnonzero(begins).tolist(), CONTEXT + 1})
        for begin, stop in pairwise(cuts):
            if stop - begin > 1:
                own = window[None, begin:stop]
                logits = model(own[:, :-1], 1)[0] if isinstance(model, MixtureDecoder) else model(own[:, :-1])[0]
                wanted = torch.from_numpy(counted[begin + 1 : stop])
                losses.append(functional.cross_entropy(logits, own[0, 1:], reduction="none")[wanted].sum())
                count += int(wanted.sum())
    return torch.stack(losses).sum() / count


def _made(kind: str) -> tuple[Decoder | MixtureDecoder, TensorSchema]:
    torch.manual_seed(2)
    if kind == "expert":
        return MixtureDecoder(SMALL, MIXTURE, (0, 1)), held_units(SMALL, MIXTURE, (0, 1)).whole
    return Decoder(SMALL), model_schema(SMALL)


@pytest.mark.parametrize("has_starts", [False, True], ids=["together", "isolated"])
@pytest.mark.parametrize("kind", ["data", "expert"])
@pytest.mark.parametrize("kept", ["none", "selective", "full"])
def test_loss_and_gradients_are_those_of_documents_one_by_one(
    tmp_path: Path, kept: Checkpointing, kind: str, has_starts: bool
) -> None:
    reader = _marked(tmp_path, has_starts=has_starts)
    starts = reader.aligned(window_starts(1, "a", 0, 5, reader.num_tokens, CONTEXT + 1), CONTEXT + 1)
    model, schema = _made(kind)
    expected = _one_by_one(model, reader, starts)
    wanted = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)
    replica = Replica(
        model, schema, InnerSection(learning_rate=0.1, batch_tokens=CONTEXT), CardPlan(checkpointing=kept)
    )
    batches, num_counted, loss = Batches(torch.device("cpu"), CONTEXT + 1), reader.num_counted(starts, CONTEXT + 1), 0.0
    for batch in batches.of_step(reader, [starts[:2], starts[2:4], starts[4:]]):
        inputs_BT, targets_BT = replica.cut(batch.tokens_BT)[0], replica.share_of(batch.targets_BT)
        own = (1,) if kind == "expert" else ()
        part = model.loss(inputs_BT, targets_BT, *own, batch.marks_within(num_counted))
        replica.backward(part)
        loss += float(part.detach())
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)
    for parameter, grad in zip(model.parameters(), wanted, strict=True):
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        assert torch.allclose(found, torch.zeros_like(parameter) if grad is None else grad, rtol=1e-5, atol=1e-6)
