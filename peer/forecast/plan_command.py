"""`potluck plan` tells what a run will come to, before anybody opens it. Reads; writes nothing but the picture that is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from averaging.system.output_file import is_printed, write_output
from protocol.errors import ConfigError, UsageError
from protocol.tables import examples

if TYPE_CHECKING:
    from peer.forecast.forecast_core import Conditions

_PANEL: Final = "For hosts"
_MODEL: Final = "The model and its rounds"
_END: Final = "The end"
_PEERS: Final = "Peers and their links"
_ENERGY: Final = "Energy and cost"
_OUTPUT: Final = "Output"
_MOST_HOURS: Final = 24.0
_MOST_LEAVES: Final = 1000.0
_MOST_WATTS: Final = 1e6
_MOST_PRICE: Final = 1e6
_COUNT_UNITS: Final = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_MOST_COUNT: Final = float(1 << 53)


def add_plan_command(app: typer.Typer) -> None:
    """Add `potluck plan`."""
    lines = (
        "potluck plan run.toml --peers 4xrtx3090,1xh100 --grid de",
        "potluck plan --days 14 --peers 8xrtx4090@200/50",
    )
    app.command(rich_help_panel=_PANEL, epilog=examples(*lines))(plan)


_Values = Annotated[
    str, typer.Option(rich_help_panel=_MODEL, help="Values of a model, as 350M or 1.2B. Its shape is found.")
]
_Dim = Annotated[int, typer.Option(rich_help_panel=_MODEL, help="Width of a model, with --layers.")]
_Layers = Annotated[int, typer.Option(rich_help_panel=_MODEL, help="Layers of a model, with --dim.")]
_Vocab = Annotated[int, typer.Option(rich_help_panel=_MODEL, help="Vocabulary of such a model.")]
_Context = Annotated[int, typer.Option(rich_help_panel=_MODEL, help="Context of such a model, in tokens.")]
_LocalSteps = Annotated[int, typer.Option(rich_help_panel=_MODEL, help="Local steps of a round, without a run.toml.")]
_BatchTokens = Annotated[int, typer.Option(rich_help_panel=_MODEL, help="Tokens of a local step, without a run.toml.")]
_Codec = Annotated[str, typer.Option(rich_help_panel=_MODEL, help="Codec of rounds, without a run.toml.")]
_Tokens = Annotated[
    str,
    typer.Option(rich_help_panel=_END, help="Tokens to train, as 20B. Those of run.toml, or 20 a value if not given."),
]
_Days = Annotated[float | None, typer.Option(rich_help_panel=_END, help="Find the best model that these days allow.")]
_Loss = Annotated[
    float | None, typer.Option(rich_help_panel=_END, help="Find the shortest time to this loss, in nats a token.")
]
_Peers = Annotated[
    str,
    typer.Option(
        rich_help_panel=_PEERS,
        help="Peers, as 4xrtx3090,1x8xh100@1000/200: COUNTxCARD or COUNTxCARDSxCARD, with a link in Mbit/s. A measured speed "
        "stands for a card, as 2x5.5tflops:90w or 3x12000tok/s.",
    ),
]
_Link = Annotated[
    str, typer.Option(rich_help_panel=_PEERS, help="Link of peers that have none of their own, Mbit/s down/up.")
]
_Hours = Annotated[float, typer.Option(rich_help_panel=_PEERS, help="Hours a day that a peer trains.")]
_Churn = Annotated[
    float, typer.Option(rich_help_panel=_PEERS, help="Times a day that a peer is gone without a goodbye.")
]
_Mfu = Annotated[
    float, typer.Option(rich_help_panel=_PEERS, help="Share of its peak that a card of the table reaches.")
]
_MachineWatts = Annotated[
    float, typer.Option(rich_help_panel=_ENERGY, help="Power of a peer's machine beside its cards.")
]
_PriceKwh = Annotated[
    float | None, typer.Option(rich_help_panel=_ENERGY, help="Price of a kilowatt-hour, for the cost.")
]
_Grid = Annotated[
    str, typer.Option(rich_help_panel=_ENERGY, help="A country's two letters, or grams of CO2 a kilowatt-hour.")
]
_AsJson = Annotated[bool, typer.Option("--json", rich_help_panel=_OUTPUT, help="Print JSON for scripts.")]
_Svg = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", rich_help_panel=_OUTPUT, help="Write time against size to this SVG file; - prints it."
    ),
]


def plan(
    run_file: Annotated[Path | None, typer.Argument(help="A run.toml; or give --values, or --days or --loss.")] = None,
    values: _Values = "",
    dim: _Dim = 0,
    layers: _Layers = 0,
    vocab: _Vocab = 32_768,
    context: _Context = 1024,
    local_steps: _LocalSteps = 30,
    batch_tokens: _BatchTokens = 32_768,
    codec: _Codec = "int8",
    tokens: _Tokens = "",
    days: _Days = None,
    loss: _Loss = None,
    peers: _Peers = "",
    link: _Link = "100/20",
    hours: _Hours = 24.0,
    churn: _Churn = 0.0,
    mfu: _Mfu = 0.3,
    machine_watts: _MachineWatts = 80.0,
    price_kwh: _PriceKwh = None,
    grid: _Grid = "",
    as_json: _AsJson = False,
    svg: _Svg = None,
) -> None:
    """Plan a run: memory, speed, rounds, traffic, days, energy and loss to expect of these peers.

    With --days it names the best model, with --loss the shortest time. Starts
    nothing. Every table and law is named with its source.
    """
    from peer.forecast.crew_core import parse_link
    from peer.forecast.forecast_core import Conditions
    from peer.forecast.plan_answer import Ends, Wish, plan_answer
    from peer.forecast.shapes_core import Numbers
    from protocol.grids import grid_g_per_kwh

    if as_json and is_printed(svg):
        raise UsageError("both --json and --svg - for standard output", "one of the two", "name a file with --svg")
    ends = Ends(days, loss, _count("--tokens", tokens) if tokens else None)
    numbers = Numbers(vocab, context, local_steps, batch_tokens, codec)
    wish = Wish(run_file, _count("--values", values) if values else None, dim, layers, ends, numbers)
    conditions = Conditions(
        link=parse_link(link),
        hours_a_day=hours,
        leaves_a_day=churn,
        mfu=mfu,
        machine_watts=machine_watts,
        price_kwh=price_kwh,
        g_per_kwh=grid_g_per_kwh(grid) if grid else None,
    )
    answer = plan_answer(wish, peers, _checked(conditions))
    if svg is not None:
        write_output(svg, answer.svg(), "choose another with --svg")
    typer.echo(json.dumps(answer.json()) if as_json else "\n".join(answer.lines()), err=is_printed(svg))


def _checked(conditions: Conditions) -> Conditions:
    _check("--hours", conditions.hours_a_day, 1e-3, _MOST_HOURS)
    _check("--churn", conditions.leaves_a_day, 0.0, _MOST_LEAVES)
    _check("--mfu", conditions.mfu, 1e-3, 1.0)
    _check("--machine-watts", conditions.machine_watts, 0.0, _MOST_WATTS)
    if conditions.price_kwh is not None:
        _check("--price-kwh", conditions.price_kwh, 0.0, _MOST_PRICE)
    return conditions


def _check(flag: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{flag} {value:g}", f"{least:g} to {most:g}")


def _count(flag: str, text: str) -> int:
    """A count such as "350M", "1.2B" or "20_000_000"."""
    unit = _COUNT_UNITS.get(text[-1:].lower(), 1.0)
    digits = text[:-1] if unit > 1.0 else text
    try:
        count = float(digits) * unit
    except ValueError:
        count = 0.0
    if not 1 <= count <= _MOST_COUNT:
        raise ConfigError(f"{flag} {text[:40]!r}", "a count above 0", "such as 350M, 1.2B or 20_000_000")
    return round(count)
