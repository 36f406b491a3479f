"""The volunteer's and the newcomer's commands. Each imports what it needs when it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from averaging.host.flags import command_with_flags, flags_given
from averaging.host.hints import with_folder
from peer.finding.directory_command import add_directory_command
from peer.finding.find_command import add_find_command
from peer.forecast.plan_command import add_plan_command
from peer.profile.profile_command import add_profile_command
from peer.service_commands import LocalHost, add_service_commands
from protocol.errors import RunOverError
from protocol.tables import examples, several

if TYPE_CHECKING:
    from peer.settings.config import PeerConfig, PlaceConfig

_PANEL: Final = "For volunteers"
_HOSTS: Final = "For hosts"
_MOST_INVITE_LETTERS: Final = 1 << 16
"""Of standard input. More is no invite."""


OpenCheckpoint: TypeAlias = Callable[[str, Path | None], AbstractContextManager[Path]]
"""The folder of the checkpoint that a name and a state folder mean, for as long as it is used."""


def add_commands(app: typer.Typer, open_checkpoint: OpenCheckpoint, load_host: Callable[[], LocalHost]) -> None:
    """Add this folder's commands to the command line. `load_host` imports the access to this machine's host."""
    joining = (
        "potluck join potluck1:... --detach",
        "potluck join --weekly-hours 'mon-fri 22:00-07:00' --only-when-idle",
    )
    app.command(cls=command_with_flags(_settings), rich_help_panel=_PANEL, epilog=examples(*joining))(join)
    app.command(rich_help_panel=_PANEL, epilog=examples("potluck pause --for 1h30m", "potluck pause"))(pause)
    app.command(rich_help_panel=_PANEL, epilog=examples("potluck resume"))(resume)
    add_service_commands(app, load_host)
    asking = ("potluck doctor", "potluck doctor potluck1:...")
    app.command(cls=command_with_flags(_place), rich_help_panel=_PANEL, epilog=examples(*asking))(doctor)
    demos = ("potluck demo --shards expert --plot demo.png", "potluck demo --one-round")
    app.command(epilog=examples(*demos))(demo)
    generating = ("potluck generate latest --prompt 'def main('", "potluck generate CHECKPOINT_DIR --temperature 0.5")
    app.command("generate", epilog=examples(*generating))(_generate_command(open_checkpoint))
    cutting = ("potluck cut run.toml", "potluck cut run.toml --peer-gb 4 --peer-gb 8 --replicas 1")
    app.command(rich_help_panel=_HOSTS, epilog=examples(*cutting))(cut)
    add_find_command(app, _PANEL)
    add_directory_command(app, _HOSTS)
    add_plan_command(app)
    add_profile_command(app)


def _settings() -> type[PeerConfig]:
    from peer.settings.config import PeerConfig

    return PeerConfig


def _place() -> type[PlaceConfig]:
    from peer.settings.config import PlaceConfig

    return PlaceConfig


def join(
    context: typer.Context,
    invite: Annotated[
        list[str] | None,
        typer.Argument(
            help="The line the host gave you (potluck1:...), or - to read it from standard input, which keeps it out of `ps`; leave "
            "out to go on with the last run."
        ),
    ] = None,
    run: Annotated[
        str, typer.Option("--run", help="Go on with this run, by its name or id as `potluck runs` shows them.")
    ] = "",
    detach: Annotated[
        bool, typer.Option("--detach", help="Go on in the background, also when this terminal is closed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the settings and what to expect, and do nothing else.")
    ] = False,
    over_is_fine: Annotated[
        bool,
        typer.Option("--over-is-fine", help="Exit with 0 where the run has ended, for a job that repeats what fails."),
    ] = False,
) -> None:
    """Join a run with one pasted line: be admitted, fetch data and state, train, average.

    Ctrl-C leaves cleanly; run it again to go on with the same identity.

    Flags win over POTLUCK_PEER_* variables, and those over peer.toml.
    --dry-run shows every setting and where it comes from.
    """
    flags = flags_given(context)
    config, text = _settings().load(flags), _whole(invite)
    if text:
        from protocol.identity.invite import decode_invite

        decode_invite(text)  # reject a mistyped line before any heavy import
    if run:
        _check_named_run(config, run, text)
    if dry_run:
        from peer.checks.dry_run import dry_run_lines

        typer.echo("\n".join(dry_run_lines(config, flags, text)))
        return

    with _over_is_fine() if over_is_fine else nullcontext():
        _join_now(config, text, run, pieces=invite or (), detach=detach)


@contextmanager
def _over_is_fine() -> Iterator[None]:
    """Take the end of the run for success, so that a scheduler does not start the peer again."""
    try:
        yield
    except RunOverError as error:
        typer.echo(f"{error}; this is fine (--over-is-fine)")


def _join_now(config: PeerConfig, text: str, run: str, *, pieces: Sequence[str], detach: bool) -> None:
    _check_invite(config, text, run)
    typer.echo("checking this machine and loading the training program, some seconds ...")
    from averaging.gc_freeze import frozen_imports
    from peer.checks.doctor import check_before_join
    from peer.training.worker_process import early_worker

    check_before_join(config, text)
    if detach:
        from peer.owner.detached import join_detached

        typer.echo("\n".join(join_detached(config.state_dir, line=text, pieces=pieces)))
        return
    with nullcontext() if config.reduce_only else early_worker() as worker:
        # Both import torch, which is slow, so they import in parallel.
        with frozen_imports():
            from averaging.system.freed_memory import give_back_large_blocks
            from peer.daemon import run_peer

        give_back_large_blocks()
        raise typer.Exit(run_peer(config, text, worker, run))


def _check_named_run(config: PeerConfig, run: str, text: str) -> None:
    from peer.membership.named_run import find_run
    from protocol.errors import UsageError

    if text:
        raise UsageError("both an invite and --run", "one of the two", "leave --run out: the invite names its run")
    find_run(config.state_dir, run)


def _check_invite(config: PeerConfig, text: str, run: str) -> None:
    """Refuse an invite that cannot work, none without an earlier run, a banned peer, and a second one of a state folder, before any
    slow import.
    """
    import time

    from peer.membership.joining import usable_invite
    from peer.membership.own_ban import own_ban
    from peer.membership.saved_membership import run_folder
    from peer.owner.running_peer import refuse_second_peer

    refuse_second_peer(config.state_dir)
    invite = usable_invite(config.state_dir, text, time.time(), run)
    if ban := own_ban(config.state_dir, run_folder(config.state_dir, invite.run_id)):
        raise ban


def _whole(invite: list[str] | None) -> str:
    """The pasted line, or standard input for "-": at a terminal its first line, otherwise all of it, as a mail program may have
    wrapped the line. A terminal or a chat may have put spaces into it; the shell then passes several arguments.
    """
    pieces = invite or ()
    is_read = list(pieces) == ["-"]
    if is_read:
        import sys

        pieces = [sys.stdin.readline() if sys.stdin.isatty() else sys.stdin.read(_MOST_INVITE_LETTERS)]
    whole = "".join("".join(pieces).split())
    if is_read and not whole:
        from protocol.errors import ConfigError

        raise ConfigError("no invite on standard input", "the line that the host printed", "see: potluck join --help")
    return whole


_StateDir = Annotated[Path | None, typer.Option(help="Folder of identity and progress, as at `potluck join`.")]


def pause(
    length: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="How long, as 90s, 30m, 1h30m or 2d; a number alone is minutes. Until `potluck resume` if not given.",
        ),
    ] = None,
    state_dir: _StateDir = None,
) -> None:
    """Stop training within two seconds. The peer stays a member, and what it has trained still counts."""
    import time

    from peer.owner.controls_core import OwnerPause
    from peer.owner.pause_file import write_pause
    from peer.settings.hours_core import parse_pause

    minutes = None if length is None else parse_pause(length)
    folder = _settings().load({"state_dir": state_dir}).state_dir
    until_unix_s = None if minutes is None else time.time() + minutes * 60
    write_pause(folder, OwnerPause(until_unix_s))
    end = (
        "until `potluck resume`" if minutes is None else f"for {several(minutes, 'minute')}, or until `potluck resume`"
    )
    typer.echo(with_folder(f"paused {end}: a running peer stops training within 2 s, a later one starts paused"))


def resume(state_dir: _StateDir = None) -> None:
    """End a pause. Hours, battery and temperature may still hold training back; the status says so."""
    from peer.owner.pause_file import remove_pause

    folder = _settings().load({"state_dir": state_dir}).state_dir
    typer.echo("the pause is over" if remove_pause(folder) else "it was not paused")


def doctor(
    context: typer.Context,
    invite: Annotated[
        list[str] | None,
        typer.Argument(help="A host's line (potluck1:...), to look at the way there; else the last run's host."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    speed: Annotated[
        Path | None,
        typer.Option(metavar="RUN_FILE", help="Only measure how fast this machine trains the model of this run.toml."),
    ] = None,
) -> None:
    """Check this machine for problems that would stop or slow a run, and say how to fix them.

    With an invite, or a run that was joined before, also checks the way to its
    host; the invite is not used up. Each line is ok, warn or fail. Ends with 4
    if one fails, else with 0. Leaves nothing behind.
    """
    config = _settings().load(flags_given(context))
    if speed is not None:
        from peer.checks.own_speed import measured_speed, take_priority_of_training

        take_priority_of_training()
        found = measured_speed(speed, config)
        typer.echo(found.json() if as_json else "\n".join(found.lines(speed)))
        return
    from peer.checks.doctor import run_doctor

    raise typer.Exit(run_doctor(config, _whole(invite), as_json=as_json))


def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Keep everything here; a temporary folder if not given.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the summary for machines to this file; - prints it.")
    ] = None,
    plot_file: Annotated[Path, typer.Option("--plot", help="File of the loss curve (PNG); - for a pipe.")] = Path(
        "potluck-demo.png"
    ),
    total_tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens",
            help="How many tokens the peers train together; 1,228,800 if not given. Fewer leave the loss unjudged.",
        ),
    ] = None,
    limit_s: Annotated[float, typer.Option(help="Give up after this many seconds.")] = 900.0,
    shards: Annotated[
        str,
        typer.Option(
            help='"expert": four peers, a trunk that all hold and two experts; "pipeline": six, two lanes of three stages.'
        ),
    ] = "data",
    one_round: Annotated[
        bool,
        typer.Option(
            "--one-round", help="Only check that the installation works: two peers, one round, nobody is killed."
        ),
    ] = False,
) -> None:
    """Run a host and three peers on this machine and train a small model on Python's own source text.

    One peer is slowed to a third; one is killed half-way, comes back and
    catches up.
    """
    from peer.demo.run import USUAL_TOKENS, DemoOptions, run_demo

    options = DemoOptions(
        directory=directory,
        json_file=json_file,
        plot_file=plot_file,
        total_tokens=USUAL_TOKENS if total_tokens is None else total_tokens,
        limit_s=limit_s,
        shards=shards,
        one_round=one_round,
    )
    raise typer.Exit(run_demo(options))


def _generate_command(open_checkpoint: OpenCheckpoint) -> Callable[..., None]:
    def generate(
        checkpoint: Annotated[
            str,
            typer.Argument(
                metavar="CHECKPOINT",
                help="A checkpoint's folder, a host's or a peer's folder, or \"latest\" for the newest model here.",
            ),
        ],
        prompt: Annotated[str, typer.Option(help="Beginning of the text.")] = "",
        tokens: Annotated[
            int, typer.Option(help="Most tokens to write, of the run's tokenizer; by default a token is a byte.")
        ] = 256,
        temperature: Annotated[
            float, typer.Option(help="Lower is safer and duller; 0 takes the likeliest token.")
        ] = 0.7,
        top_k: Annotated[int, typer.Option(help="Draw from this many of the likeliest tokens; 0 for all.")] = 0,
        seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
        chat: Annotated[
            bool,
            typer.Option(
                "--chat", help="Put the prompt as a user's message, in a run on chats; show the answer alone."
            ),
        ] = False,
        expert: Annotated[int, typer.Option(help="Number of the expert, in a run of experts.")] = 0,
        base: Annotated[
            Path | None,
            typer.Option(help="Data folder with the base of an adapter; the one beside the checkpoint if not given."),
        ] = None,
        threads: Annotated[
            int, typer.Option(help="Threads of the CPU; 0 for as many as suit the size of the model.")
        ] = 0,
        state_dir: Annotated[
            Path | None,
            typer.Option(help='Folder of a host or a peer that "latest" is about; both usual ones if not given.'),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts, at the end.")] = False,
    ) -> None:
        """Continue a text with the model of a checkpoint, on the CPU; ends at the model's end mark.

        Bytes that are not UTF-8 are shown as the replacement sign.
        """
        from peer.models.sampling import Sampling

        sampling = Sampling(tokens, seed, temperature, top_k, threads)
        from peer.models.checkpoint_sample import print_text, text_json

        with open_checkpoint(checkpoint, state_dir) as path:
            if as_json:
                typer.echo(text_json(path, prompt, sampling, expert, base, is_chat=chat))
            else:
                print_text(path, prompt, sampling, expert, base, is_chat=chat)

    return generate


def cut(
    run_file: Annotated[
        Path, typer.Argument(help="A pipeline run's manifest, as `potluck init --shards pipeline` has it.")
    ],
    peer_gb: Annotated[
        list[float] | None,
        typer.Option(
            help="Memory in GB that a peer gives, once for each expected peer. Finds the fewest stages that fit.",
            show_default=False,
        ),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Fewest peers for each stage, with --peer-gb.")] = 2,
    device: Annotated[
        str, typer.Option(help="Device to measure on: cpu, cuda or mps; auto takes the best there is.")
    ] = "auto",
) -> None:
    """Measure the cost of a model's parts on this machine and show the most even cut into stages. Writes nothing."""
    from peer.pipeline.stage.stage_costs import stages_lines, wall_s

    typer.echo("\n".join(stages_lines(run_file, device, tuple(peer_gb or ()), replicas, wall_s)))
