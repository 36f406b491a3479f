"""Which experts a peer holds, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from protocol.host.expert_choice import Holding, holders, share_out
from protocol.ids import PeerId
from protocol.pipeline.placement.peer_memory import peer_memory_bytes
from protocol.rounds.messages.start import StartRecord
from protocol.run.experts_section import ExpertsSection
from protocol.run.manifest import RunConfig
from protocol.tensors.expert_schema import expert_unit

CARD_BYTES_PER_PARAMETER: Final = 18
"""Parameters, gradients, two moments of Adam, and activations; measured with the default model (tests/benchmarks/memory.py)."""


@dataclass(frozen=True, slots=True)
class Known:
    """Input to the choice of experts.

    Attributes:
        num_experts: of the run.
        me: this peer.
        room: how many experts this peer would hold.
        pinned: experts that the owner named.
        kept: experts held earlier in this run.
        founded: experts that this peer founded the run with, by the host's start record.
        others: all reachable peers, with the experts that they have proven to hold.
        claims: for each expert, how many more peers claim it without proof or cannot be asked; empty if there are none.
    """

    num_experts: int
    me: PeerId
    room: int
    pinned: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    founded: tuple[int, ...] = ()
    others: Mapping[PeerId, Holding] | None = None
    claims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen experts in ascending order, and why."""

    experts: tuple[int, ...]
    reason: str


def choose(known: Known) -> Choice:
    """Choose by the first that applies: the owner's wish, what is on our disk, what the run began with here, what the run lacks
    most.
    """
    for experts, reason in (
        (known.pinned, "its owner named them"),
        (known.kept, "held here before"),
        (known.founded, "the run began with them here"),
    ):
        if experts:
            return Choice(experts, reason)
    peers = {**(known.others or {}), known.me: Holding(room=known.room)}
    experts = share_out(known.num_experts, peers, known.claims)[known.me]
    counts = [len(peers) for peers in holders(known.num_experts, {p: h.experts for p, h in peers.items()})]
    return Choice(
        experts, f"the run lacks them most: the experts have {', '.join(map(str, counts))} holders among those listed"
    )


def founded(start: StartRecord, me: PeerId, num_experts: int) -> tuple[int, ...]:
    """The experts that the start record gives to a founder; none for a peer that joined later."""
    rosters = {unit.unit: unit.roster for unit in start.units}
    return tuple(expert for expert in range(num_experts) if me in rosters.get(expert_unit(expert), ()))


def of_founders(start: StartRecord, num_experts: int) -> dict[PeerId, tuple[int, ...]]:
    """The experts of each founder."""
    return {peer: founded(start, peer, num_experts) for peer in start.roster}


def room_for(config: RunConfig, max_memory_bytes: int, max_card_bytes: int) -> int:
    """How many experts a peer would hold, within the run's limit and its owner's memory limits (0: no limit). At least one, since
    a peer without an expert has no part in the run. An estimate, as in protocol/estimates/estimates.py.
    """
    section = config.experts
    if section is None:
        return 0
    room = section.holdings
    while room > 1 and not _fits(config, section, room, max_memory_bytes, max_card_bytes):
        room -= 1
    return room


def _fits(config: RunConfig, section: ExpertsSection, room: int, max_memory_bytes: int, max_card_bytes: int) -> bool:
    num_values = section.model_copy(update={"holdings": room}).held_elements(config.model)
    memory_bytes = peer_memory_bytes(num_values, has_feedback=config.round.feedback > 0)
    fits_card = not max_card_bytes or CARD_BYTES_PER_PARAMETER * num_values <= max_card_bytes
    return fits_card and (not max_memory_bytes or memory_bytes <= max_memory_bytes)
