"""Chooses how the cards of one machine train a model together, and why. Pure.

Islands: each card holds a replica of its own, and nothing passes between cards while they train. Sharded: all cards hold one
replica. One replica learns better from the same tokens than several do, so sharded cards are taken if they are nearly as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from peer.training.plan.card_memory_core import CardLoad
from peer.training.plan.card_plan import Wishes
from peer.training.plan.cards_core import Card, native_precision
from peer.training.plan.layout import Layout, Mesh, WishedSplit, World
from peer.training.plan.layout_words import island_words, replica_words
from peer.training.plan.owned_cards_core import LeftOut, OwnedCard
from peer.training.plan.plan_core import Choice, Limits, choose, is_less_away
from peer.training.plan.rank_memory_core import ALONE
from peer.training.plan.speed_core import peak_flops
from protocol.errors import ConfigError
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import ModelConfig

SHARDED_FROM: Final = 0.8
"""Speed of sharded cards, of the islands' speed, from which they are preferred."""

SLOW_SHARE: Final = 0.25
"""A card below this share of the fastest one's peak is no part of a replica that it would slow down."""

WhyNot = Callable[[ModelConfig, int], str]
"""Why so many ranks cannot split a model so, in one line; empty if they can."""


@dataclass(frozen=True, slots=True)
class SplitRules:
    """The splits that a model allows: of each sequence, and of its layers' products."""

    context: WhyNot
    tensor: WhyNot


@dataclass(frozen=True, slots=True)
class Links:
    """The links between cards, by pairs of their numbers, the smaller first.

    Attributes:
        fast: with NVLink or xGMI between them.
        apart: that cannot read each other's memory, so that values go through the machine's.
    """

    fast: frozenset[tuple[int, int]] = frozenset()
    apart: frozenset[tuple[int, int]] = frozenset()

    def are_fast(self, cards: Sequence[OwnedCard]) -> bool:
        """Whether each two of them are joined so."""
        return all(pair in self.fast for pair in _pairs(cards))

    def are_apart(self, cards: Sequence[OwnedCard]) -> bool:
        """Whether any two of them are."""
        return any(pair in self.apart for pair in _pairs(cards))


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """A layout with its cards.

    Attributes:
        cards: of each world, in the order of its ranks.
        left_out: cards that do not train.
        rival: a layout that fits as well, whose speed should be measured beside this one's; None if there is none. It has no rival.
        plans: how a card of each world would train, by its memory alone.
    """

    layout: Layout
    cards: tuple[tuple[OwnedCard, ...], ...]
    left_out: tuple[LeftOut, ...] = ()
    rival: LayoutChoice | None = None
    plans: tuple[Choice, ...] = ()

    @property
    def is_sharded(self) -> bool:
        """Whether several cards share a replica."""
        return any(len(world) > 1 for world in self.cards)


@dataclass(frozen=True, slots=True)
class Task:
    """The model to train, and the limits.

    Attributes:
        max_celsius: the owner's ceiling; a card that is hotter stops all that share a replica with it. 0 for none.
    """

    load: CardLoad
    inner: InnerSection
    wishes: Wishes
    limits: Limits
    rules: SplitRules
    max_celsius: float = 0.0

    @property
    def sequences(self) -> int:
        """Sequences of a step."""
        return max(1, self.inner.batch_tokens // self.load.model.context_tokens)

    def plan_of(self, card: Card, mesh: Mesh = ALONE) -> Choice:
        """How a card would train as a rank of a mesh."""
        return choose(card, self.load, self.inner, self.wishes, self.limits, mesh=mesh)

    def among(self, num_cards: int) -> Task:
        """The same for each of so many cards, which share the machine's memory."""
        each = replace(self.limits, machine_bytes=self.limits.machine_bytes // num_cards)
        return replace(self, limits=each)


def choose_layout(cards: Sequence[OwnedCard], task: Task, split: WishedSplit, links: Links = Links()) -> LayoutChoice:
    """The layout for these cards, at least one.

    Raises:
        ConfigError: the wished split does not suit the model or the number of cards.
    """
    if len(cards) == 1:
        return _single(cards[0], task, split)
    task = task.among(len(cards))
    match split:
        case "islands":
            return _islands(cards, task, links)
        case "auto":
            return _automatic(cards, task, links)
        case _:
            return _wished(cards, task, split, links)


def one_world(cards: Sequence[OwnedCard], task: Task, split: WishedSplit, links: Links) -> World:
    """The world of `one_replica`."""
    return one_replica(cards, task, split, links).layout.worlds[0]


def one_replica(cards: Sequence[OwnedCard], task: Task, split: WishedSplit, links: Links) -> LayoutChoice:
    """One replica over as many of these cards as can share it, at least one of them: for a peer that has lost another card or has one
    back, and whose one replica trains already.
    """
    if len(cards) > 1:
        of_all, task = task, task.among(len(cards))
        try:
            is_wished = split in ("shard", "context", "tensor")
            found = _wished(cards, task, split, links) if is_wished else _replica(cards, task, links)
        except ConfigError:
            found = _replica(cards, task, links)
        if found is not None:
            return found
        task = of_all
    return _single(cards[0], task, "auto")


def settled(choice: LayoutChoice, speed: float, rival_speed: float) -> LayoutChoice:
    """The faster of a choice and its rival, with the sharded one preferred, by measured tokens/s of all cards; 0 for a layout that
    failed.
    """
    rival = choice.rival
    if rival is None:
        return choice
    own, other = (choice, speed), (rival, rival_speed)
    (sharded, sharded_speed), (islands, islands_speed) = (own, other) if choice.is_sharded else (other, own)
    if not sharded_speed and not islands_speed:
        return replace(choice, rival=None)
    is_sharded = sharded_speed > 0 and sharded_speed >= SHARDED_FROM * islands_speed
    taken = sharded if is_sharded else islands
    told = _measured_words(sharded_speed, islands_speed)
    layout = taken.layout.model_copy(update={"reason": f"{taken.layout.reason}; {told}"})
    return replace(taken, layout=layout, rival=None)


def _measured_words(sharded: float, islands: float) -> str:
    if not sharded or not islands:
        return f"{'one replica' if not sharded else 'islands'} failed when tried"
    return f"one replica trains at {sharded / islands:.0%} of the islands' speed here"


def _single(card: OwnedCard, task: Task, split: WishedSplit) -> LayoutChoice:
    plan = task.plan_of(card.card)
    reason = "" if split in ("auto", "islands") else f"--split {split} needs several cards, and there is one"
    return _built([[card]], [ALONE], [plan], reason)


def _automatic(cards: Sequence[OwnedCard], task: Task, links: Links) -> LayoutChoice:
    islands = _islands(cards, task, links)
    if not _fits(islands):
        mixed = _replica(cards, task, links)
        return mixed if mixed is not None and _fits(mixed) else _largest(islands, mixed)
    group = _of_one_kind(cards)
    sharded = _replica(group, task, links) if len(group) == len(cards) else None
    if sharded is None or not _fits(sharded) or islands.is_sharded:
        return islands
    spares_moves = is_less_away(sharded.plans[0].plan, islands.plans[0].plan)
    first, second = (sharded, islands) if links.are_fast(group) or spares_moves else (islands, sharded)
    return replace(first, rival=second if group[0].card.kind != "cpu" else None)


def _largest(islands: LayoutChoice, sharded: LayoutChoice | None) -> LayoutChoice:
    """The layout that lacks least, for a model that fits none. Training tries it, and says what is missing."""
    return islands if sharded is None or _missing(islands) <= _missing(sharded) else sharded


def _islands(cards: Sequence[OwnedCard], task: Task, links: Links) -> LayoutChoice:
    """Each card that holds the model alone; cards of one kind that hold it only together make one island."""
    worlds: list[Sequence[OwnedCard]] = []
    meshes: list[Mesh] = []
    plans: list[Choice] = []
    left: list[LeftOut] = []
    for group in _by_kind(cards):
        plan = task.plan_of(group[0].card)
        together = _replica(group, task, links) if plan.missing_bytes and len(group) > 1 else None
        if not plan.missing_bytes:
            worlds += [[card] for card in group]
            meshes += [ALONE] * len(group)
            plans += [plan] * len(group)
        elif together is not None and _fits(together):
            worlds.append(together.cards[0])
            meshes.append(together.layout.worlds[0].mesh)
            plans += together.plans
            left += together.left_out
        else:
            left += [LeftOut(card, _too_small(plan)) for card in group]
    if len(worlds) == 1 and meshes[0].num_ranks > 1:
        plan = plans[0]
        words = replica_words(
            worlds[0], meshes[0], plan, is_fast=links.are_fast(worlds[0]), is_apart=links.are_apart(worlds[0])
        )
        return _built(worlds, meshes, plans, f"{words}; no card holds the model alone", left)
    if worlds:
        return _built(worlds, meshes, plans, island_words(worlds, meshes, are_fast=links.are_fast(cards)), left)
    return _attempt(cards, task)


def _attempt(cards: Sequence[OwnedCard], task: Task) -> LayoutChoice:
    """The largest card alone, where none is expected to hold the model."""
    first = max(cards, key=lambda card: card.card.memory_bytes)
    plan = task.plan_of(first.card)
    others = [LeftOut(card, _too_small(task.plan_of(card.card))) for card in cards if card is not first]
    return _built([[first]], [ALONE], [plan], f"the model is not expected to fit a card; {first.words} tries", others)


def _replica(cards: Sequence[OwnedCard], task: Task, links: Links) -> LayoutChoice | None:
    """One replica over as many of the cards as can share a step; None if no two can, or if the model has an adapter."""
    if task.load.frozen:
        return None
    able, left = _without_slow(cards, task)
    for num_cards in range(len(able), 1, -1):
        meshes = list(_meshes(num_cards, task))
        if not meshes:
            continue
        used, smallest = able[:num_cards], _smallest(able[:num_cards])
        mesh, plan = _first_that_fits((mesh, task.plan_of(smallest, mesh)) for mesh in meshes)
        out = [*left, *(LeftOut(card, f"{len(able)} cards cannot share a step evenly") for card in able[num_cards:])]
        words = replica_words(used, mesh, plan, is_fast=links.are_fast(used), is_apart=links.are_apart(used))
        return _built([used], [mesh], [plan], words, out)
    return None


def _first_that_fits(plans: Iterable[tuple[Mesh, Choice]]) -> tuple[Mesh, Choice]:
    """The first one that fits a card with its parameters there, else the first that fits, else the one that lacks least. There is at
    least one.
    """
    tried = []
    for one in plans:
        if not one[1].missing_bytes and one[1].plan.offload != "all":
            return one
        tried.append(one)
    return min(tried, key=lambda one: one[1].missing_bytes)


def _meshes(num_cards: int, task: Task) -> Iterator[Mesh]:
    """Meshes of so many cards that share a step's sequences evenly, those that split a sequence least first. Each once with kept
    parameters, then without.
    """
    for context in range(1, num_cards + 1):
        if num_cards % context or task.sequences % (num_cards // context):
            continue
        if context > 1 and task.rules.context(task.load.model, context):
            continue
        for keeps in (True, False):
            yield Mesh(shard=num_cards, context=context, keeps_parameters=keeps)


def _wished(cards: Sequence[OwnedCard], task: Task, split: WishedSplit, links: Links) -> LayoutChoice:
    """One replica over the cards, as their owner wishes."""
    if task.load.frozen:
        raise ConfigError(f"--split {split} in a run with an adapter", "a replica on each card", "leave --split away")
    able, left = _without_slow(cards, task)
    if len(able) == 1:
        single = _single(able[0], task, split)
        return replace(single, left_out=tuple(left))
    meshes = _wished_meshes(len(able), task, split)
    mesh, plan = _first_that_fits((mesh, task.plan_of(_smallest(able), mesh)) for mesh in meshes)
    words = replica_words(able, mesh, plan, is_fast=links.are_fast(able), is_apart=links.are_apart(able))
    return _built([able], [mesh], [plan], f"{words}, as --split {split} asks", left)


def _wished_meshes(num_cards: int, task: Task, split: WishedSplit) -> list[Mesh]:
    if split == "tensor":
        shapes = _tensor_shapes(num_cards, task)
    elif split == "context":
        shapes = _context_shapes(num_cards, task)
    else:
        shapes = [(mesh.shard, 1, mesh.context) for mesh in _meshes(num_cards, task)]
        if not shapes:
            raise ConfigError(
                f"--split shard: {num_cards} cards for a step of {task.sequences} sequences",
                "a number of cards that divides them",
                "name fewer cards with --gpus, or leave --split away",
            )
    return [
        Mesh(shard=shard, tensor=tensor, context=context, keeps_parameters=keeps)
        for shard, tensor, context in dict.fromkeys(shapes)
        for keeps in (True, False)
    ]


def _context_shapes(num_cards: int, task: Task) -> list[tuple[int, int, int]]:
    if why := task.rules.context(task.load.model, num_cards):
        raise ConfigError(
            f"--split context over {num_cards} cards: {why}",
            "a number of cards that divides the context",
            "name other cards with --gpus, or leave --split away",
        )
    return [(num_cards, 1, num_cards)]


def _tensor_shapes(num_cards: int, task: Task) -> list[tuple[int, int, int]]:
    """The widest split of the layers' products that the model allows; the other cards share the rows of the parameters."""
    sizes = [size for size in range(num_cards, 1, -1) if num_cards % size == 0]
    for size in sizes:
        shard = num_cards // size
        if task.sequences % shard == 0 and not task.rules.tensor(task.load.model, size):
            return [(shard, size, 1)]
    raise ConfigError(
        f"--split tensor over {num_cards} cards: {task.rules.tensor(task.load.model, num_cards)}",
        "a number of cards that divides the heads",
        "name other cards with --gpus, or leave --split away",
    )


def _without_slow(cards: Sequence[OwnedCard], task: Task) -> tuple[list[OwnedCard], list[LeftOut]]:
    """The cards that may share a replica, and those that would slow or stop the others."""
    peaks = {card.number: _peak(card.card) for card in cards}
    fastest = max((peak for peak in peaks.values() if peak is not None), default=None)
    able: list[OwnedCard] = []
    left: list[LeftOut] = []
    for card in cards:
        peak = peaks[card.number]
        if fastest and peak is not None and peak < SLOW_SHARE * fastest:
            left.append(LeftOut(card, f"too slow: {peak / fastest:.0%} of the fastest card's peak"))
        elif hot := why_too_hot(card, task.max_celsius):
            left.append(LeftOut(card, hot))
        else:
            able.append(card)
    return (able, left) if able else (list(cards), [])


def why_too_hot(card: OwnedCard, max_celsius: float) -> str:
    """Why a card would stop those that it works with, in a few words; empty if it is not too hot. No ceiling is 0."""
    is_hot = max_celsius and card.celsius is not None and card.celsius >= max_celsius
    return f"too hot: it is at {card.celsius:.0f} C" if is_hot else ""


def _peak(card: Card) -> float | None:
    return peak_flops(card, native_precision(card))


def _by_kind(cards: Sequence[OwnedCard]) -> list[list[OwnedCard]]:
    """The cards by their kind, in the order of the first of each."""
    kinds = dict.fromkeys(kind_of(card) for card in cards)
    return [[card for card in cards if kind_of(card) == kind] for kind in kinds]


def _of_one_kind(cards: Sequence[OwnedCard]) -> list[OwnedCard]:
    """The largest number of cards of one kind."""
    return max(_by_kind(cards), key=len)


def kind_of(card: OwnedCard) -> tuple[str, str, int]:
    """Equal for cards that are alike."""
    return card.card.kind, card.card.name, card.card.memory_bytes >> 30


def _smallest(cards: Sequence[OwnedCard]) -> Card:
    return min((card.card for card in cards), key=lambda card: card.memory_bytes)


def _too_small(plan: Choice) -> str:
    return f"too small for the model: {plan.missing_bytes / 1e9:.1f} GB are missing"


def _missing(choice: LayoutChoice) -> int:
    return max((plan.missing_bytes for plan in choice.plans), default=0)


def _fits(choice: LayoutChoice) -> bool:
    return not _missing(choice)


def _built(
    worlds: Sequence[Sequence[OwnedCard]],
    meshes: Sequence[Mesh],
    plans: Sequence[Choice],
    reason: str,
    left: Sequence[LeftOut] = (),
) -> LayoutChoice:
    made = tuple(
        World(devices=tuple(card.device for card in world), mesh=mesh)
        for world, mesh in zip(worlds, meshes, strict=True)
    )
    return LayoutChoice(
        Layout(worlds=made, reason=reason), tuple(tuple(world) for world in worlds), tuple(left), None, tuple(plans)
    )


def _pairs(cards: Sequence[OwnedCard]) -> Iterator[tuple[int, int]]:
    return combinations(sorted(card.number for card in cards), 2)
