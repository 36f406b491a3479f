"""`potluck plan` tells what a run will come to, before anybody opens it. Reads; writes nothing but the picture that is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from protocol.errors import ConfigError, StorageError
from protocol.tables import examples

if TYPE_CHECKING:
    from peer.forecast.forecast_core import Conditions

_PANEL: Final = "For hosts"
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


def plan(
    run_file: Annotated[Path | None, typer.Argument(help="A run.toml; or give --values, or --days or --loss.")] = None,
    peers: Annotated[
        str,
        typer.Option(
            help="Peers, as 4xrtx3090,1x8xh100@1000/200: COUNTxCARD or COUNTxCARDSxCARD, with a link in Mbit/s. A measured speed "
            "stands for a card, as 2x5.5tflops:90w or 3x12000tok/s."
        ),
    ] = "",
    values: Annotated[str, typer.Option(help="Values of a model, as 350M or 1.2B. Its shape is found.")] = "",
    dim: Annotated[int, typer.Option(help="Width of a model, with --layers.")] = 0,
    layers: Annotated[int, typer.Option(help="Layers of a model, with --dim.")] = 0,
    vocab: Annotated[int, typer.Option(help="Vocabulary of such a model.")] = 32_768,
    context: Annotated[int, typer.Option(help="Context of such a model, in tokens.")] = 1024,
    tokens: Annotated[
        str, typer.Option(help="Tokens to train, as 20B. Those of run.toml, or 20 a value if not given.")
    ] = "",
    days: Annotated[float | None, typer.Option(help="Find the best model that these days allow.")] = None,
    loss: Annotated[float | None, typer.Option(help="Find the shortest time to this loss, in nats a token.")] = None,
    link: Annotated[str, typer.Option(help="Link of peers that have none of their own, Mbit/s down/up.")] = "100/20",
    hours: Annotated[float, typer.Option(help="Hours a day that a peer trains.")] = 24.0,
    churn: Annotated[float, typer.Option(help="Times a day that a peer is gone without a goodbye.")] = 0.0,
    local_steps: Annotated[int, typer.Option(help="Local steps of a round, without a run.toml.")] = 30,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of a local step, without a run.toml.")] = 32_768,
    codec: Annotated[str, typer.Option(help="Codec of rounds, without a run.toml.")] = "int8",
    mfu: Annotated[float, typer.Option(help="Share of its peak that a card of the table reaches.")] = 0.3,
    machine_watts: Annotated[float, typer.Option(help="Power of a peer's machine beside its cards.")] = 80.0,
    price_kwh: Annotated[float | None, typer.Option(help="Price of a kilowatt-hour, for the cost.")] = None,
    grid: Annotated[str, typer.Option(help="A country's two letters, or grams of CO2 a kilowatt-hour.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Write time against size to this SVG file.")] = None,
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
        _write(svg, answer.svg())
    typer.echo(json.dumps(answer.json()) if as_json else "\n".join(answer.lines()))


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
        raise ConfigError(f"{flag} {text!r}", "a count above 0", "such as 350M, 1.2B or 20_000_000")
    return round(count)


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf8")
    except OSError as error:
        raise StorageError(f"{file} cannot be written ({error.strerror})", "a file in a writable folder") from error
