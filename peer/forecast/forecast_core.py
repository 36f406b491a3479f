"""Foretells a run: memory, speed, rounds, traffic, days, energy, loss. Pure.

Peers are taken to train at hours of their own, evenly over the day, so the members of a round are the average of those that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from peer.forecast.card_speed_core import USUAL_MFU, GroupSpeed, group_speed
from peer.forecast.crew_core import Group, Link, num_peers
from peer.forecast.loss_law_core import ExpectedLoss, Schedule, expected_loss, no_law_for
from peer.forecast.round_times_core import Pace, RoundTimes, round_times
from peer.training.plan.card_memory_core import flops_per_token, run_load
from protocol.errors import ConfigError
from protocol.estimates.estimates import SECONDS_PER_DAY, run_size
from protocol.estimates.unit_disk import STATE_BYTES_PER_PARAMETER
from protocol.estimates.work_audits import audit_bytes
from protocol.grids import carbon_kg
from protocol.memory_costs import TRAINING_BYTES
from protocol.tables import least_duration, short_count

if TYPE_CHECKING:
    from protocol.run.manifest import RunConfig

RETURN_S: Final = 60.0
"""Seconds of a peer that comes back until it trains, without its download of the state: imports, joining, compiling."""

DEFAULT_LINK: Final = Link(100.0, 20.0)

_HOURS: Final = 24.0
_WATTS_PER_KW: Final = 1000.0


@dataclass(frozen=True, slots=True)
class Conditions:
    """Assumptions about the peers of a plan.

    Attributes:
        link: of each peer that has none of its own.
        hours_a_day: that a peer trains, above 0 and at most 24.
        leaves_a_day: how often each peer is gone without a goodbye, and comes back.
        mfu: share of the peak that cards of the table reach.
        machine_watts: of a peer's machine beside its cards.
        price_kwh: in any currency; None for no cost.
        g_per_kwh: grams of CO2 a kilowatt-hour; None for no carbon.
    """

    link: Link = DEFAULT_LINK
    hours_a_day: float = _HOURS
    leaves_a_day: float = 0.0
    mfu: float = USUAL_MFU
    machine_watts: float = 80.0
    price_kwh: float | None = None
    g_per_kwh: float | None = None


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast all peers train together, whatever the length of the run.

    Attributes:
        members: that are there at a time, on average.
        tokens_per_s: committed, averaged over day and night.
        leaving_share: of the training time that is lost when peers leave without a goodbye.
        kw: of all peers, averaged over day and night; None where the power of some is not known.
        flops_per_token: of the model, forward and backward.
    """

    groups: tuple[GroupSpeed, ...]
    members: float
    tokens_per_s: float
    rounds: RoundTimes
    leaving_share: float
    kw: float | None
    flops_per_token: int


@dataclass(frozen=True, slots=True)
class Energy:
    """Of all peers together. `cost` and `carbon_kg` are None without a price and a grid."""

    kwh: float
    cost: float | None
    carbon_kg: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """A run from its first token to its last.

    Attributes:
        num_values: that are trained.
        day_up_bytes, day_down_bytes: of one member, of its rounds.
        machine_bytes: memory of a peer's machine where training is on the CPU, as a dry run promises; `beside_card_bytes` of it
            where a card trains.
        audit_bytes: more memory of a machine on which others' steps are done again, where it is free; 0 in a run without audits.
        loss: None where no law is known, as for an adapter; a note says why.
        energy: None where the power of some peers is not known.
        notes: what limits or weakens the plan, one line each.
    """

    num_values: int
    tokens: int
    speed: Speed
    days: float
    day_up_bytes: float
    day_down_bytes: float
    machine_bytes: int
    beside_card_bytes: int
    audit_bytes: int
    loss: ExpectedLoss | None
    energy: Energy | None
    notes: tuple[str, ...]


def forecast(run: RunConfig, crew: Sequence[Group], conditions: Conditions, tokens: int | None = None) -> Forecast:
    """The run with these peers, over so many tokens or its own number of them.

    Raises:
        ConfigError: a run of stages, or no peer can train the model.
    """
    speed = crew_speed(run, crew, conditions)
    return of_tokens(run, speed, tokens or run.run.total_tokens, conditions)


def crew_speed(run: RunConfig, crew: Sequence[Group], conditions: Conditions) -> Speed:
    """How fast these peers train the run's model. Raises ConfigError as `forecast`."""
    _check_kind(run)
    groups = tuple(group_speed(run, group, conditions.mfu) for group in crew)
    able = [each for each in groups if each.fits]
    if not able:
        raise ConfigError(
            f"no peer can train {short_count(run.held_elements)} values: {groups[0].how}",
            "a model that fits some card",
            "plan a smaller model, other peers, or stages: potluck init --shards pipeline",
        )
    day_share = conditions.hours_a_day / _HOURS
    members = day_share * sum(each.group.count for each in able)
    full_tokens_per_s = day_share * sum(each.group.count * each.tokens_per_s for each in able)
    slowest = _slowest([each.group.link or conditions.link for each in able])
    rounds = round_times(run, Pace(members, full_tokens_per_s, slowest))
    leaving = _leaving_share(run, conditions, rounds, slowest)
    kept = (1.0 - rounds.lost_share) * (1.0 - leaving)
    return Speed(
        groups,
        members,
        full_tokens_per_s * kept,
        rounds,
        leaving,
        _kw(able, conditions),
        flops_per_token(run_load(run)),
    )


def of_tokens(run: RunConfig, speed: Speed, tokens: int, conditions: Conditions) -> Forecast:
    """A training of so many tokens at this speed."""
    days = tokens / speed.tokens_per_s / SECONDS_PER_DAY
    per_day = SECONDS_PER_DAY / speed.rounds.round_s * (conditions.hours_a_day / _HOURS)
    loss, machine_bytes = loss_after(run, speed, tokens), run_size(run).peer_bytes
    return Forecast(
        num_values=run.num_elements,
        tokens=tokens,
        speed=speed,
        days=days,
        day_up_bytes=speed.rounds.up_bytes * per_day,
        day_down_bytes=speed.rounds.down_bytes * per_day,
        machine_bytes=machine_bytes,
        beside_card_bytes=machine_bytes - TRAINING_BYTES * run.held_elements,
        audit_bytes=audit_bytes(run),
        loss=loss if isinstance(loss, ExpectedLoss) else None,
        energy=None if speed.kw is None else _energy(speed.kw * _HOURS * days, conditions),
        notes=_notes(run, speed, loss),
    )


def loss_after(run: RunConfig, speed: Speed, tokens: float) -> ExpectedLoss | str:
    """The loss to expect after so many tokens; where no law is known, the reason."""
    if run.adapter is not None or run.run.start_from:
        return "no law is known for a training that begins with weights"
    schedule = schedule_of(run, speed)
    return no_law_for(run.held_elements, tokens, schedule) or expected_loss(run.held_elements, tokens, schedule)


def schedule_of(run: RunConfig, speed: Speed) -> Schedule:
    """How the members train together, for the law of loss."""
    return Schedule(max(1.0, speed.members), max(1.0, speed.rounds.local_steps), run.model.vocab_size)


def _check_kind(run: RunConfig) -> None:
    if run.pipeline is not None:
        raise ConfigError(
            'run.shards = "pipeline"',
            'a run of shards = "data" or "expert"',
            "for stages see: potluck cut run.toml, potluck host run.toml --dry-run",
        )


def _slowest(links: Sequence[Link]) -> Link:
    return Link(min(link.down for link in links), min(link.up for link in links))


def _leaving_share(run: RunConfig, conditions: Conditions, rounds: RoundTimes, link: Link) -> float:
    """Each time a peer loses half a round on average, and then the time to fetch the state and to begin again."""
    state_bytes = STATE_BYTES_PER_PARAMETER * run.held_elements
    each_s = rounds.round_s / 2 + RETURN_S + state_bytes * 8 / (link.down * 1e6)
    share = conditions.leaves_a_day * each_s / (conditions.hours_a_day * SECONDS_PER_DAY / _HOURS)
    if share >= 1.0:
        raise ConfigError(
            f"--churn {conditions.leaves_a_day:g}: each time costs {each_s:.0f} s",
            "peers that stay longer than they take to come back",
            "plan fewer departures, a faster link, a smaller model or shorter rounds",
        )
    return share


def _kw(able: Sequence[GroupSpeed], conditions: Conditions) -> float | None:
    total = 0.0
    for each in able:
        if each.group.watts is None:
            return None
        total += each.group.count * (each.group.watts + conditions.machine_watts)
    return total * conditions.hours_a_day / _HOURS / _WATTS_PER_KW


def _energy(kwh: float, conditions: Conditions) -> Energy:
    price, grams = conditions.price_kwh, conditions.g_per_kwh
    return Energy(kwh, None if price is None else kwh * price, None if grams is None else carbon_kg(kwh, grams))


def _notes(run: RunConfig, speed: Speed, loss: ExpectedLoss | str) -> tuple[str, ...]:
    found = [f"{each.group.text} is left out: {each.how}" for each in speed.groups if not each.fits]
    if speed.rounds.problem:
        found.append(f"no round would end: {speed.rounds.problem}")
    crew = num_peers([each.group for each in speed.groups if each.fits])
    if crew > run.run.most_peers:
        found.append(f"{crew} peers, and the run takes {run.run.most_peers}: set max_peers in run.toml")
    elif crew > run.run.max_members:
        found.append(f"{crew} peers, and a round takes {run.run.max_members}: the others wait for a later one")
    if crew < run.run.min_members:
        found.append(f"{crew} peers, and the run starts with {run.run.min_members}")
    if speed.rounds.exchange_s > speed.rounds.due_s and run.round.mode != "blocking":
        due, lasts = least_duration(speed.rounds.due_s), least_duration(speed.rounds.exchange_s)
        found.append(
            f"the slowest link makes rounds longer, {lasts} in place of {due}: take a faster one, or a codec of fewer bits"
        )
    if speed.kw is None:
        found.append("the power of measured peers is not known: give it as 2x5.5tflops:90w")
    return (*found, *(loss.notes if isinstance(loss, ExpectedLoss) else (f"no loss is foretold: {loss}",)))
