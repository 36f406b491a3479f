"""The alternatives that `tests.benchmarks.convergence` compares: regimes, schedules of rounds, and ways to keep peers together."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Final

from averaging.models.llama.config import LlamaConfig
from protocol.rounds.messages.record import OuterStep
from protocol.rounds.schedule.target import RoundTarget

MEAN: Final = OuterStep("mean", 1.0, 0.0)


@dataclass(frozen=True)
class Regime:
    """A model and a length of training.

    Attributes:
        rates: of which the synchronous reference takes the best; the middle one is tried first.
        batch_tokens: of one peer's step.
        stop_after: steps after which a training is left, 0 to go to its end.
    """

    name: str
    model: LlamaConfig
    num_peers: int
    num_steps: int
    batch_tokens: int
    rates: tuple[float, float, float]
    stop_after: int = 0

    @property
    def stop_steps(self) -> int:
        """The point of the training's last evaluation; the learning rate knows nothing of it."""
        return self.stop_after or self.num_steps

    def numbers(self) -> dict[str, object]:
        """All of it, for JSON."""
        return {**asdict(self), "model": self.model.model_dump()}

    @property
    def total_tokens(self) -> int:
        """Of all peers."""
        return self.num_peers * self.num_steps * self.batch_tokens


def _model(dim: int, num_layers: int, ffn_dim: int, context_tokens: int) -> LlamaConfig:
    return LlamaConfig(
        dim=dim,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=4,
        ffn_dim=ffn_dim,
        context_tokens=context_tokens,
        is_tied=False,
    )


REGIMES: Final = {
    regime.name: regime
    for regime in (
        Regime("quick", _model(64, 2, 176, 64), 4, 400, 256, (2e-3, 4e-3, 8e-3)),
        Regime("L", _model(64, 2, 176, 64), 4, 4000, 256, (2e-3, 4e-3, 8e-3)),
        Regime("L2", _model(64, 2, 176, 64), 2, 4000, 256, (2e-3, 4e-3, 8e-3)),
        Regime("L8", _model(64, 2, 176, 64), 8, 2000, 256, (2e-3, 4e-3, 8e-3)),
        Regime("S", _model(128, 4, 352, 128), 4, 1000, 512, (1e-3, 2e-3, 4e-3)),
        Regime("3M", _model(256, 4, 640, 128), 8, 500, 512, (1e-3, 2e-3, 4e-3)),
    )
}


@dataclass(frozen=True)
class Ramp:
    """Local steps H of each round: `last`, or, with `share`, that share of the steps that were made before, from `first` on.

    A round that takes a fixed share of what is already trained keeps the anchor as fresh, for its age, at the beginning as at the end:
    rounds are evenly spread over the logarithm of the steps. The rule is the product's, in steps of everybody instead of tokens.
    """

    last: int
    first: int = 0
    share: float = 0.0

    def local_steps(self, done: int) -> int:
        """Of the round that begins after `done` steps."""
        return RoundTarget(self.last, self.first or self.last, self.share).planned(done, 1)


@dataclass(frozen=True)
class Way:
    """How peers are kept together.

    Attributes:
        kind: "sync", one model and everybody's gradient at each step; "rounds"; "solo", one peer without the others.
        result: the codec of means, "" for the same as of contributions.
        beta: of error feedback, 0 without.
        delay: local steps between a snapshot and the commit that it went into.
        mixing: the share of theta that a commit leaves in place; 0: theta moves by what the commit moved, as the product does with
            commits that come later than delay_steps.
        is_replaced: with a mixing of 0 theta is the new anchor, and the work since the snapshot is given up.
        keeps_work: theta is mixed with the new anchor and the work since the snapshot on it, none of which is given up.
        num_fragments: the model travels in so many units on staggered schedules.
        alone_steps: one peer trains so many before the others begin, with its own tokens only; a ramp begins where that leaves it.
        weight_decay: of the matrices.
        tables: codec of embeddings, head and norms, which then travel as a unit of their own on the same schedule; "" with the rest.
    """

    name: str
    kind: str = "rounds"
    ramp: Ramp = Ramp(50)
    codec: str = "fp32"
    result: str = ""
    beta: float = 0.0
    outer: OuterStep = MEAN
    delay: int = 0
    mixing: float = 0.0
    num_fragments: int = 1
    alone_steps: int = 0
    optimizer: str = "adamw"
    is_replaced: bool = False
    keeps_work: bool = False
    weight_decay: float = 0.1
    tables: str = ""

    @property
    def result_codec(self) -> str:
        """Of means."""
        return self.result or self.codec


_LATER: Final = {"is_replaced": False, "keeps_work": False, "weight_decay": 0.1, "tables": ""}
"""Fields that ways did not always have, and what they are without."""


@dataclass(frozen=True)
class Trial:
    """One training."""

    regime: Regime
    way: Way
    seed: int
    rate: float

    @property
    def key(self) -> str:
        """The same for the same numbers, whatever the way is called."""
        numbers = self.numbers()
        way = {name: value for name, value in asdict(self.way).items() if name != "name"}
        for name, value in _LATER.items():  # what is trained already keeps its key
            if way[name] == value:
                del way[name]
        return hashlib.sha256(json.dumps({**numbers, "way": way}, sort_keys=True).encode()).hexdigest()[:16]

    def numbers(self) -> dict[str, object]:
        """All of it, for JSON."""
        return {**asdict(self), "regime": self.regime.numbers()}


SYNC: Final = Way("synchronous AdamW", kind="sync")
SYNC_MUON: Final = Way("synchronous Muon", kind="sync", optimizer="muon")

FP32: Final = Way("H 50, fp32")
RAMP: Final = Ramp(80, 1, 1 / 50)
"""300 rounds in 4,000 steps: in four bits 103 times fewer bytes than data-parallel training."""

STEEP: Final = Ramp(100, 1, 1 / 6)
"""73 rounds, of which most are of 100 steps: 425 times fewer."""

LONG: Final = Ramp(200, 1, 1 / 8)
"""69 rounds, more of them at the beginning."""

MANY: Final = Ramp(20, 1, 1 / 150)
"""733 rounds: in the sparse codec 433 times fewer."""

RAMP_FP32: Final = Way("ramp 1..80, fp32", ramp=RAMP)
RAMP_E3M0: Final = Way("ramp 1..80, e3m0", ramp=RAMP, codec="e3m0")


@dataclass(frozen=True)
class Target:
    """The bound on a way's loss.

    Attributes:
        against: the way that it is compared with.
        most: percent of loss over it.
        fewer: at least so many times fewer bytes than the reference, 0 for any.
    """

    against: Way
    most: float
    fewer: float = 0.0


@dataclass(frozen=True)
class Point:
    """A way and its targets, the most telling first."""

    way: Way
    targets: tuple[Target, ...] = ()


MUON_RAMP: Final = Way("ramp 1..80, Muon, e3m0", ramp=RAMP, codec="e3m0", optimizer="muon")
MUON_STEEP: Final = Way("ramp 1..100, Muon, e3m0", ramp=STEEP, codec="e3m0", optimizer="muon")

MUON_E3M0: Final = Way("H 50, Muon, e3m0", codec="e3m0", optimizer="muon")
MUON_FP32: Final = Way("H 50, Muon, fp32", optimizer="muon")
STREAMING: Final = Way("H 50, streaming, 4 fragments, e3m0", codec="e3m0", delay=5, num_fragments=4)

POINTS: Final = (
    Point(RAMP_E3M0, (Target(SYNC, 3.0, 100), Target(RAMP_FP32, 0.3))),
    Point(MUON_RAMP, (Target(SYNC, 3.0, 100), Target(SYNC, 0.0), Target(SYNC_MUON, 3.0))),
    Point(MUON_STEEP, (Target(SYNC, 6.0, 400), Target(SYNC_MUON, 3.0))),
    Point(SYNC_MUON),
    Point(FP32),
    Point(Way("H 50, int8", codec="int8"), (Target(FP32, 0.3),)),
    Point(Way("H 50, int4", codec="int4"), (Target(FP32, 0.3),)),
    Point(STREAMING, (Target(FP32, 0.0),)),
    Point(
        Way("ramp 1..20, Muon, e3m0", ramp=MANY, codec="e3m0", optimizer="muon"),
        (Target(SYNC, 0.0), Target(SYNC_MUON, 3.0)),
    ),
    Point(RAMP_FP32),
    Point(Way("ramp 1..100, e3m0", ramp=STEEP, codec="e3m0"), (Target(SYNC, 6.0, 400),)),
    Point(Way("ramp 1..200, e3m0", ramp=LONG, codec="e3m0"), (Target(SYNC, 6.0, 400),)),
    Point(
        Way("ramp 1..20, topk and top6, feedback", ramp=MANY, codec="topk", result="top6", beta=0.95),
        (Target(SYNC, 6.0, 400), Target(RAMP_FP32, 1.0)),
    ),
    Point(MUON_E3M0, (Target(SYNC, 0.0), Target(SYNC_MUON, 3.0))),
    Point(Way("H 50, one step late, fp32", delay=1)),
    Point(Way("alone", kind="solo")),
)
"""The most telling first: what is left out by a time that is over stands at the end."""


_BLOCKING: Final = (Target(FP32, 0.0),)
_MUON_BLOCKING: Final = (Target(FP32, 0.0), Target(MUON_FP32, 0.0))
_HALF: Final = replace(STREAMING, name="H 50, streaming, alpha 0.5, e3m0", mixing=0.5)
_QUARTER: Final = replace(STREAMING, name="H 50, streaming, alpha 0.25, e3m0", mixing=0.25)
_NOTHING: Final = replace(STREAMING, name="H 50, streaming, alpha 0, e3m0", is_replaced=True)

_TENTH: Final = 400
"""Of the 4,000 steps of regime L; four peers' tokens of that time are 1,600 steps of one."""

_ALONE: Final = replace(MUON_RAMP, name="ramp 1..80, Muon, a tenth of the tokens alone, e3m0", alone_steps=4 * _TENTH)

ALONE: Final = (
    Point(_ALONE, (Target(MUON_RAMP, 0.0),)),
    Point(
        replace(_ALONE, name="H 50, Muon, a tenth of the tokens alone, e3m0", ramp=Ramp(50)), (Target(MUON_RAMP, 0.0),)
    ),
    Point(
        replace(_ALONE, name="ramp 1..80, Muon, a tenth of the time alone, e3m0", alone_steps=_TENTH),
        (Target(MUON_RAMP, 0.0),),
    ),
)
"""One peer begins alone. It then sends the model once to the others, as newcomers fetch it; those bytes are not counted here."""

OUTER: Final = tuple(
    Point(replace(MUON_RAMP, name=f"ramp 1..80, Muon, {name}, e3m0", outer=outer), (Target(MUON_RAMP, 0.0),))
    for name, outer in (
        ("half the outer rate", OuterStep("mean", 0.5, 0.0)),
        ("twice the outer rate", OuterStep("mean", 2.0, 0.0)),
        ("momentum 0.3", OuterStep("nesterov", 0.7, 0.3)),
    )
)
"""Other outer steps than the plain mean, to be tried with other numbers of peers."""

_SHIPPED: Final = replace(MUON_RAMP, name="H 20, Muon, int8", ramp=Ramp(20), codec="int8")
"""The rounds of the run.toml that `potluck init` writes."""

_SHIPPED_FP32: Final = replace(_SHIPPED, name="H 20, Muon, fp32", codec="fp32")

SHIPPED: Final = (
    Point(_SHIPPED, (Target(SYNC, 0.0), Target(SYNC_MUON, 3.0), Target(MUON_RAMP, 0.0), Target(_SHIPPED_FP32, 0.3))),
    Point(
        replace(_SHIPPED, name="H 20, Muon, e3m0", codec="e3m0"), (Target(MUON_RAMP, 0.0), Target(_SHIPPED_FP32, 0.3))
    ),
    Point(_SHIPPED_FP32),
    Point(replace(_SHIPPED, name="H 13, Muon, e3m0", ramp=Ramp(13), codec="e3m0"), (Target(MUON_RAMP, 0.0),)),
)
"""The last has as many bytes as the ramp: whether that pays with Muon."""

MORE: Final = (
    *ALONE,
    *OUTER,
    *SHIPPED,
    Point(_QUARTER, _BLOCKING),
    Point(_NOTHING, _BLOCKING),
    Point(_HALF, _BLOCKING),
    Point(replace(_HALF, name="H 50, streaming, alpha 0.5 of the deviation, e3m0", keeps_work=True), _BLOCKING),
    Point(replace(_HALF, name="H 50, streaming, alpha 0.5, fp32", codec="fp32"), _BLOCKING),
    Point(replace(STREAMING, name="H 50, streaming, one step late, e3m0", delay=1), _BLOCKING),
    Point(MUON_FP32),
    Point(replace(_HALF, name="H 50, streaming, Muon, alpha 0.5, e3m0", optimizer="muon"), _MUON_BLOCKING),
    Point(replace(_QUARTER, name="H 50, streaming, Muon, alpha 0.25, e3m0", optimizer="muon"), _MUON_BLOCKING),
    Point(replace(_NOTHING, name="H 50, streaming, Muon, alpha 0, e3m0", optimizer="muon"), _MUON_BLOCKING),
    Point(replace(STREAMING, name="H 50, streaming, Muon, e3m0", optimizer="muon"), _MUON_BLOCKING),
)
"""Other ways to mix, trained only where they are asked for (`--only "streaming|Muon, fp32"`), and shown wherever they were."""
