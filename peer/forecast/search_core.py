"""The other way round: the best model for some days, and the shortest time to a loss. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isinf
from typing import TYPE_CHECKING, Final

from peer.forecast.crew_core import Group, num_peers
from peer.forecast.forecast_core import Conditions, Forecast, crew_speed, of_tokens, schedule_of
from peer.forecast.loss_law_core import (
    TOKENS_PER_VALUE,
    Schedule,
    blind_loss,
    expected_loss,
    least_loss,
    no_vocabulary_for,
    tokens_to,
)
from peer.forecast.shapes_core import MOST_TOKENS, Numbers, ladder, run_of, shape_of
from peer.training.plan.card_memory_core import flops_per_token, run_load
from protocol.errors import ConfigError
from protocol.estimates.estimates import SECONDS_PER_DAY
from protocol.tables import several, short_count

if TYPE_CHECKING:
    from protocol.run.manifest import RunConfig

MOST_DAYS: Final = 36_500.0
"""A plan of more than a hundred years is of no use to anybody."""


def portable(crew: Sequence[Group], run: RunConfig | None) -> list[Group]:
    """The peers with speeds for any model. A speed in tokens/s holds for one model, so it becomes one in FLOP/s.

    Args:
        run: whose model was measured; None where no model is given.

    Raises:
        ConfigError: tokens/s without a model.
    """
    flops = 0 if run is None else flops_per_token(run_load(run))
    found = []
    for group in crew:
        if group.tokens_per_s and not flops:
            raise ConfigError(
                f"--peers {group.text!r} without a model",
                "a run.toml whose model was measured, or a speed for any model",
                "give sustained TFLOP/s, as 1x5.5tflops",
            )
        is_of_one = group.tokens_per_s > 0
        found.append(replace(group, tokens_per_s=0.0, flops_per_s=group.tokens_per_s * flops) if is_of_one else group)
    return found


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that was tried, and what it comes to."""

    run: RunConfig
    found: Forecast


Tokens = Callable[["RunConfig", Sequence[Group], Conditions], Forecast | None]


def to_optimum(numbers: Numbers, crew: Sequence[Group], conditions: Conditions) -> list[Candidate]:
    """All sizes that these peers can train, each over as many tokens as are compute-optimal for it (Hoffmann et al. 2022)."""
    return sorted(_tried(numbers, crew, conditions, _optimum), key=lambda each: each.run.num_elements)


def best_within(days: float, numbers: Numbers, crew: Sequence[Group], conditions: Conditions) -> list[Candidate]:
    """All sizes, each trained for so many days, the one with the lowest loss first.

    Raises:
        ConfigError: these peers can train no model, or none at all within that time.
    """
    check_days(days)

    def within(run: RunConfig, peers: Sequence[Group], given: Conditions) -> Forecast | None:
        speed = crew_speed(run, peers, given)
        tokens = int(speed.tokens_per_s * days * SECONDS_PER_DAY)
        if not run.inner.batch_tokens <= tokens <= MOST_TOKENS:
            return None
        return of_tokens(run, speed, tokens, given)

    found = list(_tried(numbers, crew, conditions, within))
    if not found:
        raise ConfigError(
            f"--days {days:g}: these peers finish no step of any model in it",
            "more days, or more peers",
            "a smaller --vocab allows smaller models",
        )
    return sorted(found, key=_nats_by_law)


def soonest_to(nats: float, numbers: Numbers, crew: Sequence[Group], conditions: Conditions) -> list[Candidate]:
    """All sizes that come to this loss, the soonest first.

    Raises:
        ConfigError: these peers reach it with no model, or the law does not speak of it.
    """
    _check_loss(nats, numbers.vocab_size)

    def reaching(run: RunConfig, peers: Sequence[Group], given: Conditions) -> Forecast | None:
        speed = crew_speed(run, peers, given)
        tokens = tokens_to(nats, run.held_elements, schedule_of(run, speed))
        found = None if isinf(tokens) or tokens > MOST_TOKENS else of_tokens(run, speed, max(1, round(tokens)), given)
        return found if found is not None and found.days <= MOST_DAYS else None

    found = list(_tried(numbers, crew, conditions, reaching))
    if not found:
        raise ConfigError(
            f"--loss {nats:g}: these peers reach it with no model that fits them",
            "a higher loss, or more and larger cards",
            "--days 30 says what they can reach",
        )
    return sorted(found, key=lambda each: each.found.days)


def time_to(nats: float, run: RunConfig, crew: Sequence[Group], conditions: Conditions) -> Forecast:
    """The training that brings this run's model to a loss.

    Raises:
        ConfigError: no number of tokens is enough, no law is known, or no peer can train it.
    """
    speed = crew_speed(run, crew, conditions)
    if run.adapter is not None or run.run.start_from:
        raise ConfigError(
            "--loss with a run that begins with weights", "a run from scratch", "plan it by run.total_tokens"
        )
    _check_loss(nats, run.model.vocab_size)
    schedule = schedule_of(run, speed)
    tokens = tokens_to(nats, run.held_elements, schedule)
    if isinf(tokens) or tokens > MOST_TOKENS:
        raise ConfigError(
            f"--loss {nats:g} with {short_count(run.held_elements)} values",
            f"more than {least_loss(run.held_elements, schedule):.2f}, which this model nears with ever more tokens",
            "take a larger model",
        )
    found = of_tokens(run, speed, max(1, round(tokens)), conditions)
    if found.days > MOST_DAYS:
        raise ConfigError(
            f"--loss {nats:g}: these peers reach it in {found.days:,.0f} days",
            f"at most {MOST_DAYS:,.0f}",
            "plan more or faster peers, or a higher loss",
        )
    return found


def within_days(days: float, run: RunConfig, crew: Sequence[Group], conditions: Conditions) -> Forecast:
    """A training of this run's model over so many days.

    Raises:
        ConfigError: no peer can train it, they finish no step of it within that time, or more tokens than a run may have.
    """
    check_days(days)
    speed = crew_speed(run, crew, conditions)
    tokens = int(speed.tokens_per_s * days * SECONDS_PER_DAY)
    if tokens < run.inner.batch_tokens:
        raise ConfigError(
            f"--days {days:g}: these peers train {several(tokens, 'token')} in it",
            f"a step of {run.inner.batch_tokens:,} tokens or more",
            "plan more days, or more peers",
        )
    if tokens > MOST_TOKENS:
        raise ConfigError(
            f"--days {days:g}: these peers train {several(tokens, 'token')} in it",
            f"at most {MOST_TOKENS:,}, the largest run.total_tokens",
            "plan fewer days, or fewer peers",
        )
    return of_tokens(run, speed, tokens, conditions)


def check_days(days: float) -> None:
    """Refuse days that nobody can mean."""
    if not 0.0 < days <= MOST_DAYS:
        raise ConfigError(f"--days {days:g}", f"more than 0 and at most {MOST_DAYS:,.0f}")


def _nats_by_law(each: Candidate) -> float:
    """For the order of models, also where the law's number itself is not foretold."""
    schedule = schedule_of(each.run, each.found.speed)
    return expected_loss(each.run.held_elements, each.found.tokens, schedule).nats


def _check_loss(nats: float, vocab_size: int) -> None:
    """Refuse a loss of which the law does not speak."""
    schedule = Schedule(vocab_size=vocab_size)
    if reason := no_vocabulary_for(schedule):
        raise ConfigError(f"--loss {nats:g}: {reason}", "a larger vocabulary", "plan by --tokens or --days")
    if nats >= blind_loss(schedule):
        blind = f"less than {blind_loss(schedule):.2f}, which a model that knows nothing has"
        raise ConfigError(f"--loss {nats:g} with a vocabulary of {vocab_size:,}", blind)


def _optimum(run: RunConfig, crew: Sequence[Group], conditions: Conditions) -> Forecast | None:
    speed = crew_speed(run, crew, conditions)
    return of_tokens(run, speed, round(TOKENS_PER_VALUE * run.num_elements), conditions)


def _tried(numbers: Numbers, crew: Sequence[Group], conditions: Conditions, found: Tokens) -> Iterator[Candidate]:
    """Each size of the ladder that some peer can train."""
    of_all = replace(numbers, members=max(1, num_peers(crew)))
    for size in ladder():
        try:
            shape = shape_of(size, numbers.vocab_size)
        except ConfigError:
            continue  # smaller than the vocabulary's embedding
        run = run_of(shape, round(TOKENS_PER_VALUE * size), of_all)
        try:
            forecast = found(run, crew, conditions)
        except ConfigError:
            return  # too large for these peers, as all that follow
        if forecast is not None:
            yield Candidate(run, forecast)
