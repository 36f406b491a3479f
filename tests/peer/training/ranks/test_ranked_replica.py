"""Real processes over gloo take the steps of one process, and their parts of vectors are those of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from peer.training.plan.card_plan import CardPlan
from peer.training.plan.layout import Mesh
from protocol.tensors.expert_schema import MixtureConfig
from tests.peer.training.ranks.ranked_world import (
    MODEL,
    Cases,
    Found,
    apart,
    carried,
    compiled,
    continued,
    gradients,
    inner,
    paused,
    searched,
    skipped,
    updates,
    vectors,
)

MOST_ERROR = 1e-5
MOST_LOSS_ERROR = 1e-6
HELD_OUT = "same held-out"
EXACT = ("loaded", "shifted", "after the evaluation", "same counters", "same size")
LOOSE = ("update", "same last loss")
UNTIED = MODEL.model_copy(update={"is_tied": False})
KEEPS = Mesh(keeps_parameters=True)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-12))


def _wrong(found: dict[str, Found], alone: dict[str, Found]) -> dict[str, float]:
    """The errors of all that differs by more than rounding."""
    wrong = {}
    for name, vectors_of in alone.items():
        for what, expected in vectors_of.items():
            most = 0.0 if what in EXACT else 1e-4 if what in LOOSE else MOST_ERROR
            most = MOST_LOSS_ERROR if what == HELD_OUT else most
            error = _error(found[name][what], expected)
            if not error <= most:
                wrong[f"{name}: {what}"] = error
    return wrong


def test_two_ranks_do_what_one_process_does(short_path: Path) -> None:
    cases = Cases(short_path)
    cases.add("plain", gradients, micro_batch=1)
    cases.add("selective", gradients, card_plan=CardPlan(checkpointing="selective"), model=UNTIED)
    cases.add("full", gradients, card_plan=CardPlan(checkpointing="full"), micro_batch=8)
    cases.add("parameters kept", gradients, mesh=KEEPS, micro_batch=1)
    cases.add("kept, full", gradients, mesh=KEEPS, card_plan=CardPlan(checkpointing="full"))
    cases.add("bf16", gradients, mesh=KEEPS, card_plan=CardPlan(precision="bf16"), micro_batch=1)
    cases.add("fp16", gradients, card_plan=CardPlan(precision="fp16"), micro_batch=1)
    cases.add("adamw", updates)
    cases.add("muon", updates, inner=inner(optimizer="muon"), mesh=KEEPS, card_plan=CardPlan(offload="moments"))
    cases.add("vectors", vectors)
    cases.add("fragments", vectors, num_fragments=2, model=UNTIED, mesh=KEEPS)
    cases.add("experts", vectors, mixture=MixtureConfig(num_experts=3, ffn_dim=12), experts=(0, 2))
    cases.add("skipped", skipped)
    kept = {"moments_file": short_path / "moments.safetensors", "moments_within_tokens": 1000}
    cases.add("continued", continued, **kept)
    cases.add("apart", apart, **kept)
    cases.add("continued muon", continued, inner=inner(optimizer="muon"), **kept)
    other_folder = short_path / "carried"
    other_folder.mkdir()
    cases.add("carried", carried, moments_file=other_folder / "moments.safetensors", moments_within_tokens=1000)
    cases.add("compiled", compiled, card_plan=CardPlan(is_compiled=True, checkpointing="full"), micro_batch=4)
    cases.add("searched", searched, micro_batch=0)
    cases.add("searched, kept", searched, mesh=KEEPS, micro_batch=0)
    cases.add("paused", paused, micro_batch=1)
    away: dict[str, tuple[Callable[..., Found], dict[str, object]]] = {
        "plain": (gradients, {"micro_batch": 1}),
        "parameters kept": (gradients, {"mesh": KEEPS, "micro_batch": 1}),
        "adamw": (updates, {}),
        "muon": (updates, {"inner": inner(optimizer="muon"), "mesh": KEEPS}),
        "vectors": (vectors, {}),
        "experts": (vectors, {"mixture": MixtureConfig(num_experts=3, ffn_dim=12), "experts": (0, 2)}),
        "skipped": (skipped, {}),
        "searched": (searched, {"micro_batch": 0}),
    }
    for name, (work, changes) in away.items():
        cases.add(f"{name}, away", work, card_plan=CardPlan(offload="all"), **changes)
    found = cases.found_by_ranks(Mesh(shard=2))
    assert _wrong(found, cases.found_alone()) == {}
    for name in away.keys() - {"searched"}:  # its micro-batch follows from measured speed
        pairs = [(what, found[f"{name}, away"][what], each) for what, each in found[name].items()]
        assert {f"{name}: {what}" for what, own, other in pairs if not torch.equal(own, other)} == set()
    assert int(found["paused"]["same late"]) <= 2, "a pause is obeyed within two micro-batches on all ranks"


def test_ranks_that_split_layers_and_rows_do_so(short_path: Path) -> None:
    cases = Cases(short_path)
    cases.add("full", gradients, mesh=KEEPS, card_plan=CardPlan(checkpointing="full"), model=UNTIED, micro_batch=1)
    cases.add("muon", updates, inner=inner(optimizer="muon"), mesh=KEEPS)
    cases.add("vectors", vectors)
    kept = {"moments_file": short_path / "moments.safetensors", "moments_within_tokens": 1000}
    cases.add("carried muon", carried, inner=inner(optimizer="muon"), **kept)
    cases.add("paused", paused, micro_batch=1)
    assert _wrong(cases.found_by_ranks(Mesh(shard=2, tensor=2)), cases.found_alone()) == {}


def test_ranks_that_share_sequences_do_so(short_path: Path) -> None:
    cases = Cases(short_path)
    cases.add("selective", gradients, mesh=KEEPS, card_plan=CardPlan(checkpointing="selective"))
    cases.add("vectors", vectors)
    assert _wrong(cases.found_by_ranks(Mesh(shard=4, context=2)), cases.found_alone()) == {}


def test_four_ranks_do_so_with_fewer_sequences_than_suit_them(short_path: Path) -> None:
    cases = Cases(short_path)
    cases.add("muon", updates, inner=inner(6, optimizer="muon"), model=UNTIED)
    cases.add("vectors", vectors, inner=inner(6), micro_batch=1)
    assert _wrong(cases.found_by_ranks(Mesh(shard=4)), cases.found_alone()) == {}
