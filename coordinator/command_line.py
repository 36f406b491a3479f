"""The host's commands on the command line. Each one imports what it needs and calls commands.py and its neighbours."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from averaging.host.flags import command_with_flags, flags_given
from averaging.host.hints import with_folder
from averaging.system.output_file import is_printed
from coordinator.checkpoint_commands import AsJson, add_checkpoint_commands
from protocol.tables import examples, several

if TYPE_CHECKING:
    from averaging.state.run_model import PeerModels
    from coordinator.experts.merge_inputs import MergeModels
    from coordinator.policy.config import HostConfig

StateDir = Annotated[Path | None, typer.Option("--state-dir", help="Folder in which the host keeps the run.")]
_PANEL: Final = "For hosts"


def add_commands(
    app: typer.Typer, load_merge: Callable[[], MergeModels], load_models: Callable[[], PeerModels]
) -> None:
    """Add this room's commands to the command line. `load_merge` imports the peers' model, for `potluck checkpoint merge`, and
    `load_models` a peer's ways to a run's model.
    """
    writing = ("potluck init --shards pipeline", "potluck init my-run.toml --from ../Qwen3-0.6B")
    app.command(rich_help_panel=_PANEL, epilog=examples(*writing))(init)
    hosting = ("potluck host run.toml --dry-run", "potluck host run.toml --grpc-port 4600 --p2p-port 4601")
    app.command(cls=command_with_flags(_settings), rich_help_panel=_PANEL, epilog=examples(*hosting))(host)
    app.add_typer(_invite_commands(), name="invite", rich_help_panel=_PANEL)
    app.command(rich_help_panel=_PANEL, epilog=examples("potluck ban rosy-relish --reason 'sends noise'"))(ban)
    app.command(rich_help_panel=_PANEL, epilog=examples("potluck ledger", "potluck ledger --json"))(ledger)
    checkpoint = typer.Typer(help="Fetch, list, check and export the run's checkpoints.", no_args_is_help=True)
    add_checkpoint_commands(checkpoint, load_models)
    merging = examples(
        "potluck checkpoint merge CHECKPOINT_DIR my-model --tune-steps 200",
        "potluck checkpoint merge CHECKPOINT_DIR my-model --without 0 --without 3",
    )
    checkpoint.command("merge", epilog=merging)(_merge_command(load_merge))
    app.add_typer(checkpoint, name="checkpoint", rich_help_panel=_PANEL)


def init(
    run_file: Annotated[Path, typer.Argument(help="The file to write; - prints it.")] = Path("run.toml"),
    shards: Annotated[
        str,
        typer.Option(
            help='Parts that a peer holds: "data", the whole model; "expert", a trunk and an expert; "pipeline", one of three stages.'
        ),
    ] = "data",
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="FOLDER|OWNER/NAME",
            help="Checkpoint to begin with, in the Hugging Face layout: a folder, or one of the Hub, to download beside the file.",
        ),
    ] = "",
) -> None:
    """Write a commented run.toml that works as it is."""
    from coordinator import commands

    commands.init_run(run_file, shards, source)
    if not is_printed(run_file):
        typer.echo(f"wrote {run_file}; next: potluck host {run_file}")


def _settings() -> type[HostConfig]:
    from coordinator.policy.config import HostConfig

    return HostConfig


def host(
    context: typer.Context,
    run_file: Annotated[Path, typer.Argument(help="The run's manifest, as `potluck init` writes it.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the settings and what to expect, then exit.")
    ] = False,
) -> None:
    """Open a run and keep it healthy: prints the line to paste for volunteers, and the status page's address.

    Ctrl-C closes the host, or `potluck stop` from another terminal. Peers train
    on. Run it again to go on.

    Flags win over POTLUCK_HOST_* variables, and those over host.toml.
    --dry-run shows every setting and where it comes from.
    """
    from coordinator import commands

    flags = flags_given(context)
    if dry_run:
        typer.echo("\n".join(commands.dry_run(run_file, flags)))
        return
    raise typer.Exit(commands.host(run_file, flags))


def _invite_commands() -> typer.Typer:
    """`potluck invite`, which makes one, and the commands below it."""
    inviting = ("potluck invite --uses 20 --hours 24", "potluck invite --qr", "potluck invite list")
    group = typer.Typer()
    group.callback(invoke_without_command=True, epilog=examples(*inviting))(invite)
    group.command("list", epilog=examples("potluck invite list", "potluck invite list --json"))(invite_list)
    group.command("withdraw", epilog=examples("potluck invite withdraw 3fa2b81c"))(invite_withdraw)
    return group


def invite(
    context: typer.Context,
    state_dir: StateDir = None,
    uses: Annotated[int, typer.Option(help="How many peers may use it.")] = 1,
    hours: Annotated[float, typer.Option(help="How long it is valid.")] = 72.0,
    qr: Annotated[bool, typer.Option("--qr", help="Show it as a QR code, too.")] = False,
) -> None:
    """Print one more invite of the run that is hosted here."""
    if context.invoked_subcommand is not None:
        context.obj = state_dir
        return
    import shutil

    from coordinator import commands
    from coordinator.admission.qr_code import qr_lines

    line = commands.make_invite(state_dir, uses=uses, hours=hours)
    typer.echo(line)
    typer.echo(with_folder(commands.invite_note(line, state_dir)), err=True)
    if qr:
        columns = shutil.get_terminal_size().columns
        lines = qr_lines(line, columns)
        typer.echo(
            "\n".join(lines) if lines else f"a terminal of {columns} columns is too narrow for its QR code",
            err=not lines,
        )


def invite_list(context: typer.Context, state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """List the run's invites, the newest last: id, peers that joined, and end."""
    from coordinator import commands
    from coordinator.admission.greeting import invite_end

    rows = commands.list_invites(state_dir or context.obj)
    if as_json:
        typer.echo(json.dumps(rows))
    elif not rows:
        typer.echo("no invite was made yet")
    for row in () if as_json else rows:
        state = str(row["ends"]) or f"valid until {invite_end(float(str(row['expires_unix_s'])))}"
        typer.echo(f"{row['id']}  used by {row['uses']} of {row['max_uses']}  {state}")


def ledger(context: typer.Context, state_dir: StateDir = None, as_json: AsJson = False) -> None:
    """Check the archive of the run's certificates, and list its files.

    The host moves certificates of old rounds from its ledger to files. Each file
    is read whole and must have the rounds that the ledger names.
    """
    from coordinator import commands

    rows = commands.audit_archive(state_dir or context.obj)
    if as_json:
        typer.echo(json.dumps(rows))
    elif not rows:
        typer.echo("no round is archived yet: the certificates of all rounds are in the ledger")
    for row in () if as_json else rows:
        rounds = f"{row['unit']}  rounds {row['first_round']} to {row['last_round']}"
        typer.echo(f"{rounds}  {row['num_certificates']} certificates  {row['num_bytes']} bytes  {row['file']}")
    if rows and not as_json:
        typer.echo(f"{several(len(rows), 'file')} checked, all whole; later rounds are in the ledger")


def invite_withdraw(
    context: typer.Context,
    invite_id: Annotated[
        str, typer.Argument(metavar="ID", help="As `potluck invite list` shows it, or the whole line.")
    ],
    state_dir: StateDir = None,
) -> None:
    """Withdraw an invite: nobody else joins with it. Peers that have joined stay."""
    from coordinator import commands

    typer.echo(commands.withdraw_invite(state_dir or context.obj, invite_id))


def ban(
    peer: Annotated[str, typer.Argument(help="Its peer id, or its name as the status page shows it.")],
    state_dir: StateDir = None,
    reason: Annotated[str, typer.Option(help="Reason; the peer and all others see it.")] = "",
) -> None:
    """Ban a peer from the run permanently: from now on nobody serves it or counts its work."""
    from coordinator import commands

    typer.echo(commands.ban(state_dir, peer, reason=reason))


def _merge_command(load_merge: Callable[[], MergeModels]) -> Callable[..., None]:
    def checkpoint_merge(
        path: Annotated[
            Path, typer.Argument(metavar="CHECKPOINT_DIR", help="A checkpoint's folder, of an expert run.")
        ],
        target: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="A new or empty folder.")],
        also: Annotated[
            list[Path] | None,
            typer.Option(
                metavar="CHECKPOINT_DIR",
                help="Also take experts of this checkpoint of the same run.",
                show_default=False,
            ),
        ] = None,
        state_dir: Annotated[
            Path | None,
            typer.Option("--state-dir", help="The host's folder; if not given, the one that contains the checkpoint."),
        ] = None,
        tune_steps: Annotated[
            int,
            typer.Option(min=0, max=100_000, help="Train only the routers, for this many steps; 0 skips it."),
        ] = 40,
        without: Annotated[
            list[int] | None,
            typer.Option(metavar="N", help="Leave this expert out; may be given several times.", show_default=False),
        ] = None,
    ) -> None:
        """Verify an expert run's checkpoint and write trunk and experts as one mixture, in Hugging Face's GraniteMoeShared layout."""
        from coordinator.experts.merge_inputs import merge_checkpoints

        paths, merge = [path, *(also or ())], load_merge()
        typer.echo(
            merge_checkpoints(paths, target, merge, state_dir=state_dir, tune_steps=tune_steps, without=without or ())
        )

    return checkpoint_merge
