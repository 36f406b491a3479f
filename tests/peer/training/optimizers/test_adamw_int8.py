"""AdamW in 8 bits over a stand-in for torchao: the real one is compared by `python -m tests.benchmarks.small_moments`."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder, load_flat
from peer.training.optimizers.adamw import AdamW, ParameterGroup
from peer.training.optimizers.adamw_int8 import AdamWInt8
from peer.training.plan.card_plan import CardPlan
from peer.training.replica.replica import Replica
from protocol.errors import LocalProtocolError, MachineError
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema

BETAS = (0.9, 0.95)


class PretendedAdamW8bit:
    """torchao's interface with exact moments: groups with a rate as a tensor, and states by its names."""

    def __init__(self, groups: list[dict[str, object]], lr: float, betas: tuple[float, float], eps: float) -> None:
        self.param_groups = [{**group, "lr": torch.tensor(lr)} for group in groups]
        self._exact = AdamW(
            [ParameterGroup(group["params"], group["weight_decay"]) for group in groups], beta1=betas[0], beta2=betas[1]
        )
        self.state: dict[torch.nn.Parameter, dict[str, torch.Tensor]] = _States()

    def _new_buffer(self, parameter: torch.nn.Parameter, _signed: bool) -> torch.Tensor:
        return torch.zeros_like(parameter, requires_grad=False)

    def step(self) -> None:
        for group, kept in zip(self.param_groups, self._exact._groups, strict=True):
            for parameter in group["params"]:
                own = self.state[parameter]
                if own:
                    kept.moments[parameter] = (own["exp_avg"], own["exp_avg_sq"], own["step"])
        self._exact.step(float(self.param_groups[0]["lr"]))
        for kept in self._exact._groups:
            for parameter, (first, second, num_steps) in kept.moments.items():
                self.state[parameter] = {"exp_avg": first, "exp_avg_sq": second, "step": num_steps}


class _States(dict[torch.nn.Parameter, dict[str, torch.Tensor]]):
    def __missing__(self, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
        self[parameter] = {}
        return self[parameter]


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "torchao.optim", SimpleNamespace(AdamW8bit=PretendedAdamW8bit))


def _parameters() -> list[torch.nn.Parameter]:
    chance = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=chance)) for shape in ((7, 5), (3,), (4, 4))]


def _groups(parameters: list[torch.nn.Parameter]) -> tuple[ParameterGroup, ParameterGroup]:
    return ParameterGroup(parameters[::2], 0.1), ParameterGroup(parameters[1:2], 0.0)


def _step(optimizer: AdamW | AdamWInt8, parameters: list[torch.nn.Parameter], seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=chance)
    optimizer.step(0.01)
    optimizer.zero_grad()


@pytest.mark.usefixtures("torchao")
def test_it_makes_the_steps_of_adamw_and_goes_on_from_its_own_moments_and_from_exact_ones() -> None:
    ours, theirs = _parameters(), _parameters()
    small = AdamWInt8(_groups(ours), beta1=BETAS[0], beta2=BETAS[1])
    exact = AdamW(_groups(theirs), beta1=BETAS[0], beta2=BETAS[1])
    assert not small.has_moments
    assert small.moments() == []
    for seed in range(3):
        _step(small, ours, seed)
        _step(exact, theirs, seed)
    again = AdamWInt8(_groups(ours), beta1=BETAS[0], beta2=BETAS[1])
    again.load_moments(exact.moments())
    _step(again, ours, 9)
    _step(exact, theirs, 9)
    assert all(map(torch.equal, ours, theirs))
    assert all(map(torch.equal, again.moments(), exact.moments()))


@pytest.mark.usefixtures("torchao")
@pytest.mark.parametrize("order", [[0, 1], [3, 1, 2, 0, 4, 5, 6, 7, 8]], ids=["too few", "of other shapes"])
def test_moments_that_do_not_fit_are_refused(order: list[int]) -> None:
    parameters = _parameters()
    optimizer = AdamWInt8(_groups(parameters), beta1=BETAS[0], beta2=BETAS[1])
    _step(optimizer, parameters, 1)
    moments = optimizer.moments()
    with pytest.raises(LocalProtocolError):
        optimizer.load_moments([moments[place] for place in order])


@pytest.mark.usefixtures("torchao")
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_replica_has_them_where_the_plan_says_so(kind: str) -> None:
    config = LlamaConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=32, context_tokens=16)
    schema, inner = model_schema(config), InnerSection(learning_rate=0.01, batch_tokens=64, optimizer=kind)
    model = Decoder(config)
    load_flat(model, schema, genesis_anchor(schema, 1))
    replica = Replica(model, schema, inner, CardPlan(moments="int8"))
    exact = Replica(Decoder(config), schema, inner, CardPlan())
    assert replica.optimizer.moments_bytes < exact.optimizer.moments_bytes
    tokens_BT = torch.randint(config.vocab_size, (2, 17), generator=torch.Generator().manual_seed(3))
    replica.backward(replica.model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:]))
    replica.step(0.01)
    assert replica.optimizer.has_moments


def test_without_torchao_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(MachineError, match=r"potluck-train\[small\]"):
        AdamWInt8(_groups(_parameters()), beta1=BETAS[0], beta2=BETAS[1])


def test_torchao_that_does_not_fit_torch_is_told_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> None:
        raise AttributeError("module 'torch' has no attribute 'int1'")

    monkeypatch.setattr("peer.training.optimizers.adamw_int8.import_module", refuse)
    with pytest.raises(MachineError, match=r"does not fit torch .*int1.*--upgrade 'potluck-train\[small\]'"):
        AdamWInt8(_groups(_parameters()), beta1=BETAS[0], beta2=BETAS[1])
