"""`potluck curves`: a run's curves for the tools that people have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from averaging.system.output_file import is_printed
from protocol.errors import ConfigError, UsageError
from protocol.tables import examples, several

if TYPE_CHECKING:
    from averaging.curves.curve import Curve, CurveSource

LoadSources = Callable[[], "Sequence[CurveSource]"]


def add_curve_commands(app: typer.Typer, load_sources: LoadSources) -> None:
    """Add the command to the command line. `load_sources` gives the daemons, those that know more first."""
    lines = ("potluck curves --csv curves.csv", "potluck curves --run our-run --tensorboard runs")
    app.command("curves", rich_help_panel="For both", epilog=examples(*lines))(_curves_command(load_sources))


def _curves_command(load_sources: LoadSources) -> Callable[..., None]:
    def curves(
        run: Annotated[str, typer.Option("--run", help="Name or id of a run here; the last one if not given.")] = "",
        url: Annotated[
            str, typer.Option("--url", help="Address of a host's page: read its newest rounds from there.")
        ] = "",
        csv: Annotated[
            Path | None, typer.Option("--csv", metavar="FILE", help="Write a table of values to FILE; - prints it.")
        ] = None,
        tensorboard: Annotated[
            Path | None, typer.Option("--tensorboard", metavar="FOLDER", help="Write events for TensorBoard.")
        ] = None,
        wandb: Annotated[
            bool, typer.Option("--wandb", help="Send them to Weights & Biases; offline with WANDB_MODE=offline.")
        ] = False,
        project: Annotated[str, typer.Option(help="Project there.")] = "potluck",
        state_dir: Annotated[
            Path | None, typer.Option("--state-dir", help="A host's or a peer's folder; both usual ones if not given.")
        ] = None,
    ) -> None:
        """Write the run's curves, round by round: losses, tokens, members and your own tokens.

        On a host they come from its ledger, with held-out losses. On a peer they
        are the rounds that it saw, with its own training loss.
        """
        if csv is None and tensorboard is None and not wandb:
            raise UsageError("no place for the curves", "--csv FILE, --tensorboard FOLDER or --wandb")
        from averaging.curves import curve_writers

        curve = _from_page(url) if url else _found(load_sources(), state_dir, run)
        shown = f"{several(len(curve.points), 'round')} of {curve.run}"
        if csv is not None:
            curve_writers.write_csv(curve, csv)
            if not is_printed(csv):
                typer.echo(f"wrote {shown} to {csv}")
        say = partial(typer.echo, err=is_printed(csv))
        if tensorboard is not None:
            curve_writers.write_tensorboard(curve, tensorboard)
            say(f"wrote {shown}; see them with: tensorboard --logdir {tensorboard}")
        if wandb:
            say(f"gave {shown} to Weights & Biases; its files: {curve_writers.write_wandb(curve, project)}")

    return curves


def _from_page(url: str) -> Curve:
    from averaging.curves.page_curve import curve_of_page

    return curve_of_page(url)


def _found(sources: Sequence[CurveSource], state_dir: Path | None, run: str) -> Curve:
    for source in sources:
        curve = source.read_curve(state_dir, run)
        if curve is not None:
            return curve
    raise ConfigError(
        f"no curve of {f'the run {run}' if run else 'any run'} is on this machine",
        "a hosted run, or one that a peer has trained in",
        "see: potluck runs; or name a host's page with --url",
    )
