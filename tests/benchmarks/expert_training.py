"""One training of `tests.benchmarks.experts`: peers with a trunk and an expert each, or with a dense model, in this process.

A peer that holds one expert computes what a dense decoder does whose feed-forward is as wide as both together, so all peers are
trained by the stacked decoder of `tests.benchmarks.convergence`; the trunk is averaged over all, an expert over those that hold it, by
the product's delta, weighted sum and outer step. Losses are of the product's own mixture.

Shapes: M peers, N values of the dense model, W windows, T tokens.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from averaging.arithmetic.delta import pseudo_gradient
from averaging.arithmetic.genesis import genesis_anchor
from averaging.arithmetic.weighted_mean import WeightedSum
from averaging.data.assignment import heldout_starts, window_starts
from averaging.data.packing.document_router import DocumentRouter
from averaging.data.packing.document_routing import route_documents
from averaging.data.sources.domains import DomainDocument, domain_documents
from averaging.data.sources.texts import Text
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder, load_flat, parts_of
from peer.models.expert_evaluation import merged_loss, routed_loss
from peer.models.merging import merge, tune_routers
from peer.models.mixture import MixtureDecoder
from peer.training.optimizers.learning_rate import learning_rate_at
from protocol.rounds.messages.record import OuterStep
from protocol.run.training_sections import InnerSection
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_config import model_schema
from tests.at_once import apply_outer_step
from tests.averaging.data.byte_documents import encode_document
from tests.benchmarks.stacked_decoder import Workers

MEAN: Final = OuterStep("mean", 1.0, 0.0)
DOMAINS: Final = ("python", "english", "c++", "stubs")
DOCUMENTS: Final = 360
"""Of each domain; one in six is kept for measuring."""

HELDOUT_EVERY: Final = 6
WINDOWS: Final = 384
"""Of each domain that a loss is measured on."""

TUNE_STEPS: Final = 40
TUNED_AS: Final = "two experts a token"
"""How a merged model's routers are taught (peer/models/merging.py): outcomes that were kept of another way count no more."""

_FEED: Final = ("w_gate", "w_up", "w_down")

Tokens = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Regime:
    """A model and a length of training; all peers take as many steps, so that data per expert are equal however many there are."""

    name: str
    decoder: LlamaConfig
    expert_ffn_dim: int
    num_steps: int
    batch_tokens: int
    local_steps: int
    rate: float
    overlap: float = 0.0

    def mixture(self, num_experts: int) -> MixtureConfig:
        """With so many experts."""
        return MixtureConfig(num_experts=num_experts, ffn_dim=self.expert_ffn_dim)


@dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
        way: "routed", "random" (documents assigned at random), "dense" (all peers one model of equal inference cost), "one domain" (a
            dense model of the first domain alone, with the data of one expert).
        num_domains: and as many experts, or peers.
    """

    regime: Regime
    way: str
    num_domains: int
    seed: int

    def numbers(self) -> dict[str, object]:
        """All of it, for JSON."""
        regime = {**asdict(self.regime), "decoder": self.regime.decoder.model_dump()}
        return {**asdict(self), "regime": regime}

    @property
    def key(self) -> str:
        """The same for the same numbers."""
        measured = {"documents": DOCUMENTS, "windows": WINDOWS, "tune_steps": TUNE_STEPS, "tuned_as": TUNED_AS}
        return hashlib.sha256(json.dumps({**self.numbers(), **measured}, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Outcome:
    """The result of a training: nats a byte on windows of all its domains, as many of each.

    Attributes:
        loss: each document by its expert, or of the dense model.
        by_domain: the same of each.
        merged, tuned: of the merged model, without and with tuned routers; None of a dense one.
        purity: share of the held-out documents whose expert most of their domain has.
    """

    loss: float
    by_domain: dict[str, float]
    merged: float | None
    tuned: float | None
    purity: float | None
    cpu_s: float


class Corpus:
    """The documents of some domains, and the windows that are measured."""

    def __init__(self, num_domains: int) -> None:
        self.domains = DOMAINS[:num_domains]
        self.documents: Mapping[str, Sequence[DomainDocument]] = {
            domain: domain_documents(domain, DOCUMENTS, HELDOUT_EVERY) for domain in self.domains
        }

    def texts(self) -> list[Text]:
        """All documents, domain by domain."""
        return [
            Text(document.data, "heldout" if document.is_heldout else "train")
            for rows in self.documents.values()
            for document in rows
        ]

    def heldout(self, domain: str) -> list[bytes]:
        """Of a domain, those that are measured on."""
        return [document.data for document in self.documents[domain] if document.is_heldout]

    def windows(self, domain: str, length: int) -> tuple[torch.Tensor, list[int]]:
        """(W, T + 1) int64 in documents of one domain, and which document each is from; as many whatever the documents' lengths."""
        documents = [encode_document(data) for data in self.heldout(domain)]
        starts = np.cumsum([0, *(len(document) for document in documents)])
        text, rows, owners = np.concatenate(documents), [], []
        for start in heldout_starts(WINDOWS, len(text), length):
            owner = int(np.searchsorted(starts, start, side="right")) - 1
            begin = max(int(starts[owner]), min(start, int(starts[owner + 1]) - length))
            rows.append(text[begin : begin + length])
            owners.append(owner)
        return torch.from_numpy(np.stack(rows).astype(np.int64)), owners


class Assignment:
    """Which expert a document belongs to, by a router or at random."""

    def __init__(self, trial: Trial, corpus: Corpus) -> None:
        self._num_experts, self._seed = trial.num_domains, trial.seed
        self.router: DocumentRouter | None = None
        texts = corpus.texts()
        if trial.way == "routed":
            routing = route_documents(lambda: texts, trial.num_domains, seed=trial.seed, overlap=trial.regime.overlap)
            self.router, choices = routing.router, routing.choices
        else:
            choices = [(self.owner(text.data),) for text in texts]
        domains = [domain for domain, rows in corpus.documents.items() for _ in rows]
        self.of_domain: list[dict[str, list[Tokens]]] = [{} for _ in range(self._num_experts)]
        """Of each expert its documents by their domains."""
        for text, choice, domain in zip(texts, choices, domains, strict=True):
            for expert in choice if text.split == "train" else ():
                self.of_domain[expert].setdefault(domain, []).append(encode_document(text.data))
        self.texts = [
            np.concatenate([tokens for rows in parts.values() for tokens in rows]) for parts in self.of_domain
        ]

    def owner(self, data: bytes) -> int:
        """The expert that a document is measured with."""
        if self.router is not None:
            return self.router.nearest(data)[0]
        seeded = hashlib.sha256(b"%d" % self._seed + data).digest()
        return int.from_bytes(seeded[:8], "big") % self._num_experts


class _Readers(Workers):
    """Workers that each read texts of their own, as much of each: of an expert's documents, or of each domain."""

    texts: Sequence[Sequence[Tokens]] = ()

    def _windows(self, number: int) -> torch.Tensor:
        length = self.model.config.context_tokens + 1
        per_reader = self._inner.batch_tokens // self.model.config.context_tokens
        rows = []
        for texts, (name,) in zip(self.texts, self._readers, strict=True):
            for place in range(per_reader):
                text = texts[(number * per_reader + place) % len(texts)]
                (start,) = window_starts(self._seed, f"{name} {place}", number, 1, len(text), length)
                rows.append(text[start : start + length])
        stacked = np.stack(rows).reshape(len(self.texts), per_reader, length)
        return torch.from_numpy(stacked.astype(np.int64))


class Held:
    """The places of the values of a trunk and one expert in the dense decoder that computes the same."""

    def __init__(self, decoder: LlamaConfig, mixture: MixtureConfig) -> None:
        units = held_units(decoder, mixture, [0])
        self.num_trunk = units.schemas[0].num_elements
        # as wide as the shared part and a token's experts together: of equal cost a token
        self.dense = decoder.model_copy(update={"ffn_dim": decoder.ffn_dim + mixture.top_k * mixture.ffn_dim})
        places = torch.arange(units.whole.num_elements)
        named = dict(zip((spec.name for spec in units.whole.tensors), parts_of(places, units.whole), strict=True))
        self._of_dense = torch.cat(
            [self._part(spec.name, named).flatten() for spec in model_schema(self.dense).tensors]
        )
        self._of_held = torch.argsort(self._of_dense)

    @staticmethod
    def _part(name: str, named: Mapping[str, torch.Tensor]) -> torch.Tensor:
        part = name.split(".")[-2]
        if part not in _FEED:
            return named[name]
        own = named[f"{name.rsplit('.', 2)[0]}.experts.0.{part}.weight"]
        return torch.cat([named[name], own], dim=1 if part == "w_down" else 0)

    def densely(self, trunk_n: torch.Tensor, expert_n: torch.Tensor) -> torch.Tensor:
        """(N,) of a trunk and an expert."""
        return torch.cat([trunk_n, expert_n])[self._of_dense]

    def apart(self, dense_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The trunk and the expert of a dense vector."""
        held = dense_N[self._of_held]
        return held[: self.num_trunk], held[self.num_trunk :]


class Training:
    """The rounds of one trial; `run` goes through it once."""

    def __init__(self, trial: Trial, corpus: Corpus) -> None:
        self._trial, self._corpus, regime = trial, corpus, trial.regime
        self._mixture = regime.mixture(trial.num_domains)
        self._held = Held(regime.decoder, self._mixture)
        self._has_experts = trial.way in ("routed", "random")
        self._num_peers = 1 if trial.way == "one domain" else trial.num_domains
        tokens = self._num_peers * regime.num_steps * regime.batch_tokens
        self._total_tokens = tokens
        self._inner = InnerSection(
            learning_rate=regime.rate, batch_tokens=regime.batch_tokens, warmup_tokens=tokens // 40
        )
        whole = held_units(regime.decoder, self._mixture, range(trial.num_domains))
        values_N = genesis_anchor(whole.whole, trial.seed)
        parts = [values_N[begin:stop] for begin, stop in whole.spans]
        self._trunk, self._experts = parts[0], parts[1:]

    @cached_property
    def _assignment(self) -> Assignment:
        return Assignment(self._trial, self._corpus)

    def _texts(self) -> list[list[Tokens]]:
        """The documents that each peer reads: a routed expert its documents; others as much of each domain, so that all see the
        domains alike.
        """
        if self._trial.way == "routed":
            return [[text] for text in self._assignment.texts]
        if self._trial.way == "random":
            return [[np.concatenate(rows) for rows in parts.values()] for parts in self._assignment.of_domain]
        domains = self._corpus.domains[:1] if self._trial.way == "one domain" else self._corpus.domains
        texts = [
            np.concatenate([encode_document(d.data) for d in self._corpus.documents[domain] if not d.is_heldout])
            for domain in domains
        ]
        return [texts] * self._num_peers

    def run(self) -> Outcome:
        """Train to the end, and measure."""
        begin_s, regime = time.process_time(), self._trial.regime
        start_N = self._held.densely(self._trunk, self._experts[0])
        readers = [[f"peer {number}"] for number in range(self._num_peers)]
        workers = _Readers(self._held.dense, self._inner, start_N, np.empty(0, np.uint8), self._trial.seed, readers)
        workers.texts = self._texts()
        self._dense = start_N
        self._load(workers)
        for step in range(regime.num_steps):
            tokens = self._num_peers * regime.batch_tokens * step
            workers.step(step, learning_rate_at(self._inner, self._total_tokens, tokens))
            if (step + 1) % regime.local_steps == 0 or step + 1 == regime.num_steps:
                self._average(workers.model.theta())
                self._load(workers)
        return self._measure(begin_s)

    def _load(self, workers: Workers) -> None:
        """Everybody's parameters are the anchors of what they hold."""
        model = workers.model
        if self._has_experts:
            anchors = [self._held.densely(self._trunk, expert) for expert in self._experts]
        else:
            anchors = [self._dense] * self._num_peers
        model.shift(torch.stack(anchors) - model.theta())
        # what a difference of floats has left out
        with torch.no_grad():
            rows = [parts_of(anchor, model.schema) for anchor in anchors]
            for number, parameter in enumerate(model.parameters):
                parameter.copy_(torch.stack([row[number] for row in rows]))

    def _average(self, theta_MN: torch.Tensor) -> None:
        if not self._has_experts:
            self._dense = self._committed(self._dense, list(theta_MN))
            return
        apart = [self._held.apart(theta_N) for theta_N in theta_MN]
        self._trunk = self._committed(self._trunk, [trunk for trunk, _ in apart])
        self._experts = [self._committed(anchor, [own]) for anchor, (_, own) in zip(self._experts, apart, strict=True)]

    def _committed(self, anchor_n: torch.Tensor, thetas: Sequence[torch.Tensor]) -> torch.Tensor:
        """One unit's anchor after its holders' round."""
        total = WeightedSum(anchor_n.numel())
        for theta_n in thetas:
            total.add(self._inner.batch_tokens, pseudo_gradient(anchor_n, theta_n))
        return apply_outer_step(anchor_n, torch.zeros_like(anchor_n), total.mean(), MEAN)[0]

    # --- measuring ---

    def _measure(self, begin_s: float) -> Outcome:
        length = self._trial.regime.decoder.context_tokens + 1
        windows = {domain: self._corpus.windows(domain, length) for domain in self._corpus.domains}
        if not self._has_experts:
            dense = Decoder(self._held.dense)
            load_flat(dense, model_schema(self._held.dense), self._dense)
            losses = {domain: merged_loss(dense, rows) for domain, (rows, _) in windows.items()}
            return Outcome(_mean(losses), losses, None, None, None, time.process_time() - begin_s)
        model, owners = self._merged(), {d: self._owners(d, of) for d, (_, of) in windows.items()}
        losses = {domain: self._routed(model, rows, owners[domain]) for domain, (rows, _) in windows.items()}
        merged = {domain: merged_loss(model, rows) for domain, (rows, _) in windows.items()}
        tune_routers(model, self._tuning())
        tuned = {domain: merged_loss(model, rows) for domain, (rows, _) in windows.items()}
        cpu_s = time.process_time() - begin_s
        return Outcome(_mean(losses), losses, _mean(merged), _mean(tuned), self._purity(), cpu_s)

    def _owners(self, domain: str, of_document: Sequence[int]) -> list[int]:
        owners = [self._assignment.owner(data) for data in self._corpus.heldout(domain)]
        return [owners[document] for document in of_document]

    def _routed(self, model: MixtureDecoder, rows: torch.Tensor, owners: Sequence[int]) -> float:
        whose = torch.tensor(owners)
        return routed_loss(model, {expert: rows[whose == expert] for expert in range(self._trial.num_domains)})

    def _sample(self, expert: int, count: int, step: int) -> torch.Tensor:
        length, text = self._trial.regime.decoder.context_tokens + 1, self._assignment.texts[expert]
        starts = window_starts(self._trial.seed, f"expert {expert}", step, count, len(text), length)
        return torch.from_numpy(text[np.array(starts)[:, None] + np.arange(length)].astype(np.int64))

    def _merged(self) -> MixtureDecoder:
        experts = dict(enumerate(self._experts))
        samples = {expert: self._sample(expert, 64, 0)[:, :-1] for expert in experts}
        return merge(self._trial.regime.decoder, self._mixture, self._trunk, experts, samples)

    def _tuning(self) -> list[torch.Tensor]:
        experts = range(self._trial.num_domains)
        return [torch.cat([self._sample(expert, 8, step) for expert in experts]) for step in range(1, TUNE_STEPS + 1)]

    def _purity(self) -> float:
        most = total = 0
        for domain in self._corpus.domains:
            owners = [self._assignment.owner(data) for data in self._corpus.heldout(domain)]
            most += max(owners.count(expert) for expert in range(self._trial.num_domains))
            total += len(owners)
        return most / total


def _mean(losses: Mapping[str, float]) -> float:
    return sum(losses.values()) / len(losses)
