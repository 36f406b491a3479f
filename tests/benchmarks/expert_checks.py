"""X1 to X8 and the bytes of `tests.benchmarks.experts`: equalities of runs with experts, on small models in this process.

Averages are the product's own, from a contribution's bytes to the outer step; models, merging and checkpoints as well.

Shapes: N values of a unit.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import structlog
import torch
import trio
from torch.nn import functional
from trio.testing import MockClock

from averaging.arithmetic.genesis import genesis_anchor
from averaging.arithmetic.weighted_mean import WeightedSum
from averaging.codecs import codec_by_name
from averaging.data.assignment import window_starts
from averaging.data.packing.document_features import Embeddings, fit_embeddings
from averaging.data.packing.document_router import fit_router
from averaging.data.sources.domains import domain_documents
from averaging.data.tokenizer import ByteTokenizer
from averaging.models.llama.config import LlamaConfig
from averaging.state.state import UnitState, state_root
from coordinator.checkpoints.checkpoints import (
    CheckpointContent,
    UnitContent,
    write_checkpoint,
)
from peer.models.decoder import Decoder, parameters_in_order, parts_of
from peer.models.merging import merge, without_expert
from peer.models.mixture import MixtureDecoder, Routed
from peer.training.optimizers.optimizer import make_optimizer
from protocol.ids import CommitId, UnitName
from protocol.rounds.messages.record import OuterStep
from protocol.run.experts_section import RouterFeatures
from protocol.run.traffic import update_bytes
from protocol.run.training_sections import InnerSection
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_units import ModelUnits
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema
from tests.at_once import apply_outer_step, encode_chunks, encode_contribution
from tests.averaging.arithmetic.picked_tensors import picked
from tests.averaging.data.byte_documents import encode_document
from tests.benchmarks.feedback import decoded
from tests.coordinator.checkpoints.loaded import load_checkpoint
from tests.instruction_sets import without
from tests.oracles.expert_swarm import Settings, beside_rounds_of_others, sent_a_round
from tests.peer.models.whole_models import holder_model
from tests.simulation.collection import SCENARIOS
from tests.simulation.scenario import play

ROOT: Final = Path(__file__).parents[2]
CHUNK: Final = 1024
TOKENS: Final = 256
"""Of a member's contribution: a power of two, as is the number of members, so that a mean of short numbers is exact in float32."""

NESTEROV: Final = OuterStep("nesterov", 0.5, 0.5)
DECODER: Final = LlamaConfig(dim=32, num_layers=2, num_heads=2, num_kv_heads=2, ffn_dim=48, context_tokens=32)
MIXTURE: Final = MixtureConfig(num_experts=2, ffn_dim=48)
INNER: Final = InnerSection(learning_rate=2e-3, batch_tokens=256)
FP32: Final = codec_by_name("fp32")
LOCAL_STEPS: Final = 5
ROUNDS: Final = 3

Vectors = tuple[torch.Tensor, torch.Tensor]
"""Anchor and momentum, (N,) float32 each."""


def committed(state: Vectors, thetas: Sequence[torch.Tensor], outer: OuterStep = NESTEROV) -> Vectors:
    """A unit after one round of its holders, who all bring as many tokens."""
    anchor_N, momentum_N = state
    grid, total = ChunkGrid(anchor_N.numel(), CHUNK), WeightedSum(anchor_N.numel())
    for theta_N in thetas:
        offered = encode_contribution(anchor_N, theta_N, TOKENS, FP32, grid)
        total.add(TOKENS, decoded(offered.chunks, FP32, grid))
    update_N = decoded(encode_chunks(total.mean(), FP32, grid), FP32, grid)
    return apply_outer_step(anchor_N, momentum_N, update_N, outer)


def oracle(state: Vectors, thetas: Sequence[torch.Tensor]) -> Vectors:
    """The same in float64, from the formulas."""
    anchor_N, momentum_N = (part.double() for part in state)
    update_N = anchor_N - torch.stack([theta_N.double() for theta_N in thetas]).mean(0)
    moved_N = NESTEROV.momentum * momentum_N + update_N
    return anchor_N - NESTEROV.learning_rate * (update_N + NESTEROV.momentum * moved_N), moved_N


def x1_oracle(*, is_exact: bool) -> float:
    """Largest difference of trunk and experts from the oracle after a round, each averaged by its holders: absolute on numbers whose
    mean float32 holds exactly, else over the largest value.
    """
    source = torch.Generator().manual_seed(3)
    holders, worst = {0: (0, 1), 1: (2, 3)}, 0.0

    def values(count: int) -> torch.Tensor:
        if is_exact:
            return torch.randint(-512, 512, (count,), generator=source).float() / 512
        return torch.randn(count, generator=source)

    units = held_units(DECODER, MIXTURE, range(2)).schemas
    for schema, members in zip(units, [range(4), *holders.values()], strict=True):
        state = values(schema.num_elements), values(schema.num_elements)
        thetas = [values(schema.num_elements) for _ in members]
        for own, expected in zip(committed(state, thetas), oracle(state, thetas), strict=True):
            scale = 1.0 if is_exact else float(expected.abs().max())
            worst = max(worst, float((own.double() - expected).abs().max()) / scale)
    return worst


# --- peers that train ---


@dataclass
class Peer:
    """A peer's model, its optimizer, and the name under which it reads text."""

    experts: tuple[int, ...]
    reader: str
    step: int = 0
    model: MixtureDecoder = field(init=False)

    def __post_init__(self) -> None:
        self.units = held_units(DECODER, MIXTURE, self.experts)
        self.model = MixtureDecoder(DECODER, MIXTURE, self.experts)
        self.parameters = parameters_in_order(self.model, self.units.whole)
        self._optimizer = make_optimizer(INNER, self.units.whole, self.parameters)

    def train(self, text: np.ndarray, num_steps: int) -> None:
        """Local steps on windows of the text, its expert's documents; of two experts in turn."""
        length = DECODER.context_tokens + 1
        for _ in range(num_steps):
            count = INNER.batch_tokens // DECODER.context_tokens
            starts = window_starts(1, self.reader, self.step, count, len(text), length)
            tokens_BT = torch.from_numpy(text[np.array(starts)[:, None] + np.arange(length)].astype(np.int64))
            logits_BTV = self.model(tokens_BT[:, :-1], self.experts[self.step % len(self.experts)])
            torch.autograd.backward(functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten()))
            torch.nn.utils.clip_grad_norm_(self.parameters, INNER.clip_norm)
            self._optimizer.step(INNER.learning_rate)
            self._optimizer.zero_grad()
            self.step += 1

    def theta(self) -> torch.Tensor:
        """(N,) of everything held."""
        return torch.cat([parameter.detach().flatten() for parameter in self.parameters])

    def load(self, theta_N: torch.Tensor) -> None:
        """Take these values."""
        with torch.no_grad():
            for parameter, part in zip(self.parameters, parts_of(theta_N, self.units.whole), strict=True):
                parameter.copy_(part)

    def of_unit(self, theta_N: torch.Tensor, unit: UnitName) -> torch.Tensor:
        """A unit's part of such a vector."""
        begin, stop = self.units.spans[self.units.place(unit)]
        return theta_N[begin:stop]


def python_text() -> np.ndarray:
    """Tokens that all of it is trained on."""
    return np.concatenate([encode_document(document.data) for document in domain_documents("python", 40)])


def first_states(*, are_alike: bool = False) -> dict[UnitName, Vectors]:
    """Trunk and experts before the first round; `are_alike` gives all experts the values of the first."""
    units = held_units(DECODER, MIXTURE, range(MIXTURE.num_experts))
    values_N, states = genesis_anchor(units.whole, 1), dict[UnitName, Vectors]()
    for place, (schema, (begin, stop)) in enumerate(zip(units.schemas, units.spans, strict=True)):
        first, last = (begin, stop) if place == 0 or not are_alike else units.spans[1]
        states[schema.unit] = values_N[first:last].clone(), torch.zeros(stop - begin)
    return states


def load_all(peers: Sequence[Peer], states: Mapping[UnitName, Vectors]) -> None:
    """Everybody's theta is the anchor of what it holds."""
    for peer in peers:
        peer.load(torch.cat([states[schema.unit][0] for schema in peer.units.schemas]))


def run_rounds(peers: Sequence[Peer], states: dict[UnitName, Vectors], num_rounds: int) -> dict[UnitName, Vectors]:
    """Local steps, then a round of each unit by those that hold it."""
    text = python_text()
    load_all(peers, states)
    for _ in range(num_rounds):
        for peer in peers:
            peer.train(text, LOCAL_STEPS)
        thetas = [peer.theta() for peer in peers]
        states = {unit: committed(state, _held_by(peers, thetas, unit)) for unit, state in states.items()}
        load_all(peers, states)
    return states


def _held_by(peers: Sequence[Peer], thetas: Sequence[torch.Tensor], unit: UnitName) -> list[torch.Tensor]:
    held = [{schema.unit for schema in peer.units.schemas} for peer in peers]
    return [peer.of_unit(theta, unit) for peer, theta, units in zip(peers, thetas, held, strict=True) if unit in units]


def x1_others_stay() -> bool:
    """Whether rounds of one expert, which they sum themselves, leave all that those have who do not hold it as it was, bit by bit:
    parameters, outer state and disk of the experts that they hold. In virtual time, by production's rounds.
    """
    _be_quiet()
    with tempfile.TemporaryDirectory() as folder:
        found = trio.run(beside_rounds_of_others, Path(folder), clock=MockClock(autojump_threshold=0))
    did_touch = found.reducers == {found.bystander} and min(found.moved) > 0
    return did_touch and found.after == found.before and not found.of_averaged


def _be_quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def x2_one_group() -> bool:
    """Whether an expert that everybody holds ends as the same model averaged whole, bit by bit, momentum included."""
    readers = ("a", "b", "c", "d")
    states = {unit: state for unit, state in first_states().items() if unit != "expert-1"}
    apart = run_rounds([Peer((0,), reader) for reader in readers], dict(states), ROUNDS)
    peers, text = [Peer((0,), reader) for reader in readers], python_text()
    whole = torch.cat([anchor for anchor, _ in states.values()]), torch.cat([m for _, m in states.values()])
    for peer in peers:
        peer.load(whole[0])
    for _ in range(ROUNDS):
        for peer in peers:
            peer.train(text, LOCAL_STEPS)
        whole = committed(whole, [peer.theta() for peer in peers])
        for peer in peers:
            peer.load(whole[0])
    together_ = [torch.cat([state[part] for state in apart.values()]) for part in range(2)]
    return all(torch.equal(one, other) for one, other in zip(together_, whole, strict=True))


def x3_same_data() -> float:
    """Largest difference of two experts that begin alike, after their groups saw the same data."""
    peers = [Peer((expert,), reader) for expert in range(2) for reader in ("a", "b")]
    states = run_rounds(peers, first_states(are_alike=True), ROUNDS)
    one, other = states[UnitName("expert-0")], states[UnitName("expert-1")]
    return max(float((a.double() - b.double()).abs().max()) for a, b in zip(one, other, strict=True))


def x4_restart() -> bool:
    """Whether anchors and momenta come back from a checkpoint bit by bit, and the next round with them is the same."""
    peers = [Peer((expert,), reader) for expert in range(2) for reader in ("a", "b")]
    states = run_rounds(peers, first_states(), ROUNDS)
    for peer in peers:
        peer.train(python_text(), LOCAL_STEPS)
    thetas = [peer.theta() for peer in peers]
    restored = _through_checkpoint(states)
    is_same = all(torch.equal(a, b) for unit in states for a, b in zip(states[unit], restored[unit], strict=True))
    moved = all(float(state[1].abs().max()) > 0 for state in states.values())
    after = [
        {unit: committed(s, _held_by(peers, thetas, unit)) for unit, s in which.items()} for which in (states, restored)
    ]
    return is_same and moved and all(
        torch.equal(a, b) for unit in states for a, b in zip(after[0][unit], after[1][unit], strict=True)
    )  # fmt: skip


def _through_checkpoint(states: Mapping[UnitName, Vectors]) -> dict[UnitName, Vectors]:
    units, contents = held_units(DECODER, MIXTURE, range(2)), []
    for schema in units.schemas:
        anchor_N, momentum_N = states[schema.unit]
        state = UnitState(schema.unit, CommitId(bytes(32)), ROUNDS, 1, anchor_N, momentum_N)
        grid = ChunkGrid(schema.num_elements, CHUNK)
        contents.append(UnitContent(schema, grid, state, state_root(state, grid)))
    spine = contents[0]
    content = CheckpointContent(
        "experts", "ab" * 32, units.whole, spine.grid, DECODER.model_dump(), spine.state, spine.root,
        units=tuple(contents),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        row = write_checkpoint(Path(folder), content, now_unix_s=1)
        _, loaded = load_checkpoint(Path(folder) / row.path)
    return {
        schema.unit: (picked(loaded.anchor_N, units.whole, schema), picked(loaded.momentum_N, units.whole, schema))
        for schema in units.schemas
    }


# --- the merged model ---


def _samples() -> dict[int, torch.Tensor]:
    """Of two domains (B, T) int64, one an expert's."""
    samples = {}
    for expert, domain in enumerate(("python", "c++")):
        text = np.concatenate([encode_document(document.data) for document in domain_documents(domain, 20)])
        starts = window_starts(1, domain, 0, 32, len(text), DECODER.context_tokens)
        windows = text[np.array(starts)[:, None] + np.arange(DECODER.context_tokens)]
        samples[expert] = torch.from_numpy(windows.astype(np.int64))
    return samples


def _parts(mixture: MixtureConfig) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """A trunk and experts with weights large enough that each matters."""
    units = held_units(DECODER, mixture, range(mixture.num_experts))
    values_N = genesis_anchor(units.whole, 2) * 3.0
    parts = [values_N[begin:stop] for begin, stop in units.spans]
    return parts[0], dict(enumerate(parts[1:]))


def x5_forced() -> float:
    """Largest difference of logits: the merged model forced to an expert, and routed to it, against the holder's own model."""
    trunk_N, experts = _parts(MIXTURE)
    samples, worst = _samples(), 0.0
    merged = merge(DECODER, MIXTURE, trunk_N, experts, samples)
    with torch.no_grad():
        for expert, own_N in experts.items():
            expected = holder_model(DECODER, MIXTURE, [expert], torch.cat([trunk_N, own_N]))(samples[expert], expert)
            worst = max(worst, float((merged(samples[expert], expert) - expected).abs().max()))
            only = merge(DECODER, MIXTURE, trunk_N, {expert: own_N}, {expert: samples[expert]})
            worst = max(worst, float((only(samples[expert]) - expected).abs().max()))
    return worst


def x5_dense() -> float:
    """The same of a mixture of one expert against the dense model that is as wide as both its feed-forwards."""
    mixture = MixtureConfig(num_experts=1, ffn_dim=MIXTURE.ffn_dim)
    trunk_N, experts = _parts(mixture)
    merged = merge(DECODER, mixture, trunk_N, experts, {0: _samples()[0]})
    values, wide = merged.state_dict(), Decoder(DECODER.model_copy(update={"ffn_dim": 96}))
    for name, parameter in wide.named_parameters():
        part = name.split(".")[-2]
        if part in ("w_gate", "w_up", "w_down"):
            own = values[f"{name.rsplit('.', 2)[0]}.experts.0.{part}.weight"]
            parameter.data = torch.cat([values[name], own], dim=1 if part == "w_down" else 0)
        else:
            parameter.data = values[name]
    tokens_BT = _samples()[1]
    with torch.no_grad():
        return float((merged(tokens_BT) - wide(tokens_BT)).abs().max())


def x6_removed() -> tuple[bool, int]:
    """Whether logits of tokens that were sent elsewhere, as were all before them, stay bit-equal without an expert; and how many
    tokens that were.
    """
    mixture = MixtureConfig(num_experts=3, ffn_dim=48)
    trunk_N, experts = _parts(mixture)
    samples = _samples()
    samples[2] = samples[0].flip(1)  # text that no other expert has
    merged = merge(DECODER, mixture, trunk_N, experts, samples)
    tokens_BT = torch.cat(list(samples.values()))
    is_same, untouched = True, 0
    with torch.no_grad():
        logits_BTV, chosen = merged.routed(tokens_BT)
        for expert in range(3):
            found_BTV = without_expert(merged, expert)(tokens_BT)
            for row, stop in enumerate(_first_sent(chosen, expert)):
                is_same = is_same and torch.equal(found_BTV[row, :stop], logits_BTV[row, :stop])
                untouched += stop
    return is_same, untouched


def _first_sent(chosen: Sequence[Routed], expert: int) -> list[int]:
    """Of each sequence the place of the first token that any layer sends to the expert; its length where none is."""
    sent_BT = torch.stack([routed.logits_BTX.argmax(-1) == expert for routed in chosen]).any(0)
    return [int(row.int().argmax()) if bool(row.any()) else len(row) for row in sent_BT]


# --- the router, and bytes ---

_X7: Final = (
    "all-holders-of-an-expert-die",
    "a-newcomer-at-a-frozen-expert",
    "a-newcomer-goes-on-with-a-frozen-expert-from-what-the-host-keeps",
)


def x7_killed() -> list[str]:
    """All holders of an expert die in mid-round, in simulated swarms: the others commit on, and it is resumed by them, or by a
    newcomer. The error of each, "" if there was none.
    """
    _be_quiet()
    stories = [SCENARIOS[name] for name in _X7]
    return [play(reported, seed).error for reported in stories for seed in range(reported.num_seeds)]


_X8_DOMAINS: Final = ("python", "english", "c++", "stubs")
_ASSIGN: Final = """
import sys, hashlib
from pathlib import Path
from tests.instruction_sets import check_off
check_off()
from averaging.data.packing.document_router import router_from_bytes, router_root
from averaging.data.sources.domains import domain_documents
from averaging.data.tokenizer import ByteTokenizer
data, features = Path(sys.argv[1]).read_bytes(), Path(sys.argv[1]).name
router = router_from_bytes(data, router_root(data), 4, features=features, tokenizer=ByteTokenizer())
documents = [d.data for domain in ("python", "english", "c++", "stubs") for d in domain_documents(domain, 24)]
print(hashlib.sha256(repr([router.choices(text) for text in documents]).encode()).hexdigest())
"""


def x8_hashes(features: RouterFeatures) -> list[str]:
    """Hash of the assignment of 96 documents to 4 experts, in processes with 1 and 4 threads, with all vector instructions that
    NumPy would use on this machine, and with none of them, which each process looks at itself.
    """
    texts = [document.data for domain in _X8_DOMAINS for document in domain_documents(domain, 24)]
    router = fit_router(texts, 4, overlap=0.25, embeddings=_embeddings(texts) if features == "embeddings" else None)
    machines = [
        {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, **narrow}
        for threads in ("1", "4")
        for narrow in ({}, without())
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / features
        file.write_bytes(router.to_bytes())
        command = [sys.executable, "-W", "ignore", "-c", _ASSIGN, str(file)]
        return [
            subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, **machine},
                capture_output=True,
                text=True,
                check=True,
                timeout=300,
            ).stdout.strip()
            for machine in machines
        ]


def _embeddings(texts: Sequence[bytes]) -> Embeddings:
    """Of the values that a run begins with."""
    trunk = held_units(DECODER, MIXTURE, ()).whole
    rows = DECODER.vocab_size, DECODER.dim
    return fit_embeddings(
        genesis_anchor(trunk, 1)[: math.prod(rows)].view(rows).numpy(), "seed 1", texts, ByteTokenizer()
    )


def bytes_shares(codec_name: str, num_experts: int) -> tuple[float, float]:
    """Contribution bytes of a round by a peer with one expert, over those of the whole model with all experts: as
    encoded, and as its share of the values says.
    """
    mixture = MixtureConfig(num_experts=num_experts, ffn_dim=704)
    decoder = LlamaConfig(dim=256, num_layers=4, num_heads=4, num_kv_heads=4, ffn_dim=704, context_tokens=32)
    own, all_ = held_units(decoder, mixture, [0]), held_units(decoder, mixture, range(num_experts))
    sent = [sum(_encoded(schema, codec_name) for schema in units.schemas) for units in (own, all_)]
    whole_bytes = update_bytes(codec_name, all_.whole.num_elements, 16384)
    return sent[0] / whole_bytes, own.whole.num_elements / all_.whole.num_elements


WIRE_PEERS: Final = 4
WIRE_HOLDERS: Final = 2
"""Of each expert."""


def wire_shares(codec_name: str, num_experts: int) -> tuple[float, float]:
    """Bytes that a peer sends in a round of every unit that it holds, over those of a round of the whole model as one unit: on the
    network's counters, and as the values say. Four peers in virtual time, each expert with two holders.

    Of a unit of N values with m holders 2 (m - 1) N values cross in a round: contributions to who sums, and results to all others.
    """
    mixture = MixtureConfig(num_experts=num_experts, ffn_dim=352)
    decoder = LlamaConfig(dim=128, num_layers=4, num_heads=4, num_kv_heads=4, ffn_dim=352, context_tokens=32)
    units = held_units(decoder, mixture, range(num_experts))
    trunk, *experts = [schema.unit for schema in units.schemas]
    whole = ModelUnits((TensorSchema(UnitName("fragment-0"), units.whole.tensors),))
    each = num_experts * WIRE_HOLDERS // WIRE_PEERS
    held = [[trunk, *(experts[(n * each + i) % num_experts] for i in range(each))] for n in range(WIRE_PEERS)]
    _be_quiet()
    sent = [
        trio.run(sent_a_round, Settings(of, TOKENS, codec_name, 16384), who, clock=MockClock(autojump_threshold=0))
        for of, who in ((units, held), (whole, [[whole.schemas[0].unit]] * WIRE_PEERS))
    ]
    others = WIRE_PEERS - 1
    of_trunk, *of_experts = [schema.num_elements for schema in units.schemas]
    share = (others * of_trunk + (WIRE_HOLDERS - 1) * sum(of_experts)) / (others * units.whole.num_elements)
    return sent[0] / sent[1], share


def _encoded(schema: TensorSchema, codec_name: str) -> int:
    grid = ChunkGrid(schema.num_elements, 16384)
    anchor_N = torch.zeros(schema.num_elements)
    theta_N = torch.linspace(-1.0, 1.0, schema.num_elements)
    return sum(map(len, encode_contribution(anchor_N, theta_N, 1, codec_by_name(codec_name), grid).chunks))
