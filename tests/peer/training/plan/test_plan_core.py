from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from averaging.models.llama.config import LlamaConfig
from peer.training.plan.card_memory_core import adapter_load, stage_load, whole_load
from peer.training.plan.card_plan import FLOAT32, CardPlan, Wishes
from peer.training.plan.cards_core import Card
from peer.training.plan.layout import Mesh
from peer.training.plan.plan_core import Choice, Limits, choose, expected_bytes, ladder, may_lie_away, next_rung
from protocol.run.training_sections import InnerSection
from protocol.tensors.adapter_schema import AdapterConfig
from protocol.tensors.model_config import ModelConfig
from protocol.tensors.stage_schema import StageMap

GIB: Final = 1 << 30
INNER = InnerSection(learning_rate=1e-3, batch_tokens=1 << 16)


def _cuda(name: str, gib: float, capability: tuple[int, int]) -> Card:
    return Card("cuda", f"NVIDIA {name}", int(gib * GIB), capability)


RTX_3060 = _cuda("GeForce RTX 3060", 11.8, (8, 6))
H100 = _cuda("H100 80GB HBM3", 79.1, (9, 0))
M3 = Card("mps", "Apple M3 Pro", 36 * GIB, architecture="Apple M3 Pro")
CPU = Card("cpu", "x86_64", 16 * GIB)

MACHINES = (
    _cuda("GeForce GTX 1060 6GB", 5.9, (6, 1)),
    _cuda("GeForce RTX 2060", 5.8, (7, 5)),
    Card("cuda", "Tesla T4", int(14.6 * GIB), (7, 5)),
    RTX_3060,
    _cuda("GeForce RTX 3090", 23.7, (8, 6)),
    _cuda("GeForce RTX 4060 Laptop GPU", 7.8, (8, 9)),
    _cuda("GeForce RTX 4090", 23.6, (8, 9)),
    H100,
    Card("rocm", "AMD Radeon RX 7900 XTX", 24 * GIB, architecture="gfx1100"),
    Card("mps", "Apple M1", 16 * GIB, architecture="Apple M1"),
    M3,
    CPU,
)


def _model(dim: int, layers: int, ffn: int, context: int, vocab: int = 32768) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab,
        dim=dim,
        num_layers=layers,
        num_heads=dim // 64,
        num_kv_heads=dim // 256,
        ffn_dim=ffn,
        context_tokens=context,
    )


MODELS = {
    "5M": _model(256, 5, 704, 256, 257),
    "136M": _model(768, 16, 2112, 1024),
    "350M": _model(1024, 24, 2816, 1024),
    "1B": _model(2048, 20, 5632, 2048),
    "3B": _model(3072, 26, 8192, 2048),
}
GOLDEN: Final = Path(__file__).with_name("plans.txt")
COMPILES = Limits(has_compiler=True)
ANY = Wishes()


def _chosen(card: Card, model: ModelConfig, wishes: Wishes = ANY, limits: Limits = COMPILES) -> Choice:
    return choose(card, whole_load(model), INNER, wishes, limits)


def _table() -> str:
    lines = [
        f"{name}: {(choice := _chosen(card, model)).reason}; {choice.micro_batch} at a time"
        for card in MACHINES
        for name, model in MODELS.items()
    ]
    return "\n".join(lines) + "\n"


def test_the_plans_of_12_machines_for_5_models_and_their_reasons_stay() -> None:
    """If they change by intent, look at each and write the table anew: `python -m tests.peer.training.plan.test_plan_core`."""
    assert _table() == GOLDEN.read_text()


def test_a_plan_never_exceeds_what_the_card_may_give_unless_it_says_so() -> None:
    for card in MACHINES:
        for model in MODELS.values():
            choice = _chosen(card, model)
            fits = choice.expected_bytes <= choice.usable_bytes
            assert fits == (choice.missing_bytes == 0) == ("not expected to fit" not in choice.reason)


def test_a_smaller_micro_batch_comes_before_computing_activations_again() -> None:
    model = MODELS["350M"]
    plain = CardPlan(precision="bf16", is_compiled=True)
    choice = _chosen(RTX_3060, model)
    assert choice.plan == plain
    assert 1 <= choice.micro_batch < INNER.batch_tokens // model.context_tokens
    assert expected_bytes(RTX_3060, whole_load(model), INNER, 2 * choice.micro_batch, plain) > choice.usable_bytes


def test_each_rung_takes_less_of_the_card_than_the_one_before() -> None:
    load = whole_load(MODELS["1B"])
    rungs = ladder("cuda", CardPlan(precision="bf16"), may_be_int8=True)
    needs = [expected_bytes(H100, load, INNER, 4, plan) for plan in rungs]
    assert len(rungs) == 6
    assert needs == sorted(needs, reverse=True)
    assert len(set(needs)) == 6


def test_moments_are_in_8_bits_only_where_the_run_allows_it() -> None:
    model = _model(1536, 24, 4224, 2048)
    assert _chosen(RTX_3060, model).plan.moments == "exact"
    allowed = _chosen(RTX_3060, model, limits=Limits(has_compiler=True, may_be_int8=True))
    assert (allowed.plan.moments, allowed.plan.offload) == ("int8", "none")


def test_memory_that_the_machine_shares_is_not_spared_by_moving_values_there() -> None:
    assert [plan.offload for kind in ("mps", "cpu") for plan in ladder(kind, FLOAT32)] == ["none"] * 6


def test_it_compiles_on_cards_where_a_compiler_works_and_the_owner_lets_it() -> None:
    model = MODELS["136M"]
    assert _chosen(H100, model).plan.is_compiled
    assert not _chosen(H100, model, limits=Limits()).plan.is_compiled
    assert not _chosen(H100, model, Wishes(compiles="off")).plan.is_compiled
    assert not any(_chosen(card, model).plan.is_compiled for card in (M3, CPU))
    assert not _chosen(MACHINES[0], model).plan.is_compiled, "torch's compiler has no code for Pascal"


def test_the_owners_precision_and_limit_hold() -> None:
    model = MODELS["350M"]
    assert _chosen(H100, model, Wishes(precision="fp32")).plan.precision == "fp32"
    limited = _chosen(H100, model, limits=Limits(most_bytes=6_000_000_000))
    assert limited.expected_bytes <= limited.usable_bytes == 6_000_000_000
    assert _chosen(CPU, MODELS["5M"], limits=Limits(most_bytes=7)).plan == FLOAT32, "it is a limit of cards"


def test_fit_moves_the_start_of_the_ladder() -> None:
    model = MODELS["136M"]
    small = _chosen(RTX_3060, model, Wishes(fit="small")).plan
    smallest = _chosen(RTX_3060, model, Wishes(fit="smallest")).plan
    assert (small.checkpointing, small.offload) == ("full", "none")
    assert smallest.offload == "all"
    usual, fast = (_chosen(RTX_3060, model, Wishes(fit=fit)) for fit in ("auto", "fast"))
    assert fast.usable_bytes == RTX_3060.memory_bytes > usual.usable_bytes
    assert _chosen(CPU, model, Wishes(fit="smallest")).plan.checkpointing == "full"


def test_what_fits_nowhere_says_how_much_is_missing() -> None:
    choice = _chosen(_cuda("GeForce RTX 2060", 5.8, (7, 5)), MODELS["3B"])
    assert choice.plan.offload == "all"
    assert choice.missing_bytes > 0
    assert f"{choice.missing_bytes / 1e9:.1f} GB are missing" in choice.reason


def test_a_stages_micro_batch_is_the_runs() -> None:
    model = MODELS["1B"].model_copy(update={"is_tied": False})
    load = stage_load(StageMap(model, (7, 6, 7)), 1, 3)
    choice = choose(RTX_3060, load, INNER, ANY, COMPILES, micro_batch=4)
    assert choice.micro_batch == 4
    assert choice.expected_bytes == expected_bytes(RTX_3060, load, INNER, 4, choice.plan) <= choice.usable_bytes


def test_after_running_out_the_micro_batch_is_halved_and_from_one_on_the_next_plan_is_taken() -> None:
    plan, micro_batch, seen = CardPlan(precision="bf16"), 4, []
    while (then := next_rung(plan, micro_batch, "cuda", may_be_int8=True)) is not None:
        seen.append((then[0].checkpointing, then[0].moments, then[0].offload, then[1]))
        plan, micro_batch = then[0], then[1] or 1
    assert seen == [
        ("none", "exact", "none", 2),
        ("none", "exact", "none", 1),
        ("selective", "exact", "none", 0),
        ("full", "exact", "none", 0),
        ("full", "int8", "none", 0),
        ("full", "exact", "moments", 0),
        ("full", "exact", "all", 0),
    ]


def test_values_lie_in_the_machines_memory_as_far_as_it_has_room_of_one_card_and_of_ranks() -> None:
    load, num = whole_load(MODELS["1B"]), whole_load(MODELS["1B"]).num_values
    plenty, half, little = (int(2 * bytes_each * num) for bytes_each in (16.1, 8.1, 7.9))
    alone, ranks = Mesh(), Mesh(shard=2)
    rooms = [(mesh, room // mesh.num_ranks) for mesh in (alone, ranks) for room in (plenty, half, little, 0)]
    found = [may_lie_away(load, INNER, mesh, room) for mesh, room in rooms]
    assert found == ["all", "moments", "none", "all"] * 2
    adapted = adapter_load(MODELS["1B"], AdapterConfig(rank=8, alpha=16.0))
    assert may_lie_away(adapted, INNER, alone, plenty) == "moments"


def test_a_model_that_fits_with_its_parameters_in_the_machines_memory_is_planned_so_if_there_is_room() -> None:
    model, roomy, tight = MODELS["1B"], Limits(machine_bytes=64 * GIB), Limits(machine_bytes=12 * GIB)
    card = _cuda("GeForce RTX 3060 Laptop GPU", 5.8, (8, 6))
    choice = _chosen(card, model, limits=roomy)
    assert (choice.plan.offload, choice.missing_bytes) == ("all", 0)
    assert "parameters and moments in the machine's memory" in choice.reason
    assert _chosen(card, model, limits=tight).missing_bytes > 0


@pytest.mark.parametrize(("kind", "last"), [("cuda", "all"), ("cpu", "none")])
def test_a_plan_of_no_rung_goes_to_the_last_one(kind: str, last: str) -> None:
    other = CardPlan(checkpointing="selective", moments="int8")
    then = next_rung(other, 1, "cuda" if kind == "cuda" else "cpu")
    assert then is not None
    assert (then[0].offload, then[1]) == (last, 0)


if __name__ == "__main__":
    GOLDEN.write_text(_table())
