"""Answers one question of `potluck plan`: which model, which end, which peers. Reads a run.toml; writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from peer.forecast.crew_core import Group, num_peers, parse_crew
from peer.forecast.forecast_core import Conditions, Forecast, forecast
from peer.forecast.forecast_words import (
    assumption_line,
    candidate_json,
    candidate_lines,
    forecast_estimates,
    forecast_json,
)
from peer.forecast.loss_law_core import TOKENS_PER_VALUE
from peer.forecast.search_core import (
    Candidate,
    best_within,
    check_days,
    portable,
    soonest_to,
    time_to,
    to_optimum,
    within_days,
)
from peer.forecast.shapes_core import Numbers, numbers_of, run_of, shape_from, shape_of
from peer.forecast.time_plot_core import TimePoint, svg_plot, text_plot
from protocol.errors import ConfigError
from protocol.estimates.dry_run import END, estimate_lines
from protocol.grids import grid_g_per_kwh
from protocol.run.manifest import RunConfig, load_run_config
from protocol.tables import several

_MOST_BEST: Final = 5
_OPTIMUM_TITLE: Final = f"time to {TOKENS_PER_VALUE:g} tokens a value, by size"


@dataclass(frozen=True, slots=True)
class Ends:
    """The end of a training: at most one is given. Without any it is the run's, or 20 tokens a value.

    Attributes:
        loss: in nats a token.
    """

    days: float | None = None
    loss: float | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """A question.

    Attributes:
        run_file, values, (dim, layers): the model, by at most one of them. Without any, `ends` asks for the best one.
    """

    run_file: Path | None = None
    values: int | None = None
    dim: int = 0
    layers: int = 0
    ends: Ends = Ends()
    numbers: Numbers = field(default_factory=Numbers)


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan, ready to be shown.

    Attributes:
        found: of the model that is given, or of the best one.
        best: models of a search, the best first; empty where the model is given.
        points, title: a time for each size, for the picture.
    """

    conditions: Conditions
    found: Forecast
    best: tuple[Candidate, ...]
    points: tuple[TimePoint, ...]
    title: str

    def lines(self) -> list[str]:
        """For people."""
        best = ["best models", *candidate_lines(self.best, _MOST_BEST)] if self.best else []
        return [
            *best,
            "the plan",
            *estimate_lines(forecast_estimates(self.found, self.conditions)),
            *(f"note: {note}" for note in self.found.notes),
            assumption_line(self.conditions),
            *text_plot(self.points, self.title),
            END,
        ]

    def json(self) -> dict[str, object]:
        """For scripts."""
        sizes = [{"num_values": point.num_values, "days": point.days} for point in self.points]
        best = [candidate_json(each) for each in self.best[:_MOST_BEST]]
        return {"plan": forecast_json(self.found), "best": best, "sizes": sizes, "sizes_are": self.title}

    def svg(self) -> str:
        """The picture. Without any size that these peers can train it has axes alone."""
        return svg_plot(self.points, self.title)


def plan_answer(wish: Wish, peers: str, conditions: Conditions) -> Answer:
    """The answer to one question.

    Raises:
        ConfigError: peers, model or end that cannot be meant, or an end that these peers cannot reach; says what would work.
    """
    crew = parse_crew(peers)
    _check_ends(wish.ends)
    run = _given_run(wish, num_peers(crew))
    if run is not None:
        return _of_run(run, wish, crew, conditions)
    return _of_search(wish, portable(crew, None), conditions)


def _of_run(run: RunConfig, wish: Wish, crew: Sequence[Group], conditions: Conditions) -> Answer:
    ends = wish.ends
    if conditions.g_per_kwh is None and run.run.grid:
        conditions = replace(conditions, g_per_kwh=grid_g_per_kwh(run.run.grid))
    if ends.days is not None:
        found = within_days(ends.days, run, crew, conditions)
    elif ends.loss is not None:
        found = time_to(ends.loss, run, crew, conditions)
    else:
        found = forecast(run, crew, conditions, ends.tokens)
    sizes = to_optimum(numbers_of(run, wish.numbers), portable(crew, run), conditions)
    return Answer(conditions, found, (), _points(sizes), _OPTIMUM_TITLE)


def _of_search(wish: Wish, crew: Sequence[Group], conditions: Conditions) -> Answer:
    ends = wish.ends
    if ends.days is not None:
        best = best_within(ends.days, wish.numbers, crew, conditions)
        sizes, title = to_optimum(wish.numbers, crew, conditions), _OPTIMUM_TITLE
    elif ends.loss is not None:
        best = soonest_to(ends.loss, wish.numbers, crew, conditions)
        sizes, title = sorted(best, key=lambda each: each.found.num_values), f"time to a loss of {ends.loss:g}, by size"
    else:
        raise ConfigError(
            "no model and no end",
            "a run.toml, --values or --dim with --layers; or --days or --loss",
            "see: potluck plan --help",
        )
    return Answer(conditions, best[0].found, tuple(best), _points(sizes), title)


def _given_run(wish: Wish, members: int) -> RunConfig | None:
    """The run of the given model; None where the model is to be found."""
    given = [wish.run_file is not None, wish.values is not None, wish.dim > 0 or wish.layers > 0]
    if sum(given) > 1:
        raise ConfigError("a model that is given twice", "one of run.toml, --values, and --dim with --layers")
    if wish.run_file is not None:
        return load_run_config(wish.run_file)
    numbers = replace(wish.numbers, members=members)
    if wish.values is not None:
        shape = shape_of(wish.values, numbers.vocab_size)
    elif wish.dim > 0 and wish.layers > 0:
        shape = shape_from(wish.dim, wish.layers, is_tied=False)
    elif any(given):
        raise ConfigError(f"--dim {wish.dim} with {several(wish.layers, 'layer')}", "both above 0")
    else:
        return None
    return run_of(shape, round(TOKENS_PER_VALUE * shape.num_values(numbers.vocab_size)), numbers)


def _check_ends(ends: Ends) -> None:
    if sum(end is not None for end in (ends.days, ends.loss, ends.tokens)) > 1:
        raise ConfigError("several ends of one training", "one of --tokens, --days and --loss")
    if ends.days is not None:
        check_days(ends.days)
    if ends.loss is not None and not 0.0 < ends.loss < 100.0:
        raise ConfigError(f"--loss {ends.loss:g}", "nats a token above 0, such as 2.9")


def _points(sizes: Sequence[Candidate]) -> tuple[TimePoint, ...]:
    return tuple(TimePoint(each.found.num_values, each.found.days) for each in sizes)
