"""The volunteer's and the newcomer's commands: join, doctor and demo. Each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_commands(app: typer.Typer) -> None:
    """Put this room's commands on the command line."""
    app.command()(join)
    app.command()(doctor)
    app.command()(demo)


def join(
    invite: Annotated[
        list[str] | None,
        typer.Argument(help="The line the host gave you (potluck1:...); leave out to go on with the last run."),
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where identity and progress are kept.")] = None,
    listen_host: Annotated[str | None, typer.Option(help="Address on which other peers reach this one.")] = None,
    listen_port: Annotated[int | None, typer.Option(help="TCP port for other peers; 0 for any.")] = None,
    announce_host: Annotated[
        str | None, typer.Option(help="Address that others are told, where a router forwards the port.")
    ] = None,
    no_listen: Annotated[bool | None, typer.Option("--no-listen", help="Take no inbound connections.")] = None,
    http_port: Annotated[int | None, typer.Option(help="Port of the status page on this machine; 0 for any.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
    num_threads: Annotated[int | None, typer.Option(help="CPU threads for training; 0 lets torch choose.")] = None,
    slowdown: Annotated[float | None, typer.Option(help="Train at 1/N of full speed.")] = None,
) -> None:
    """Join a run with one pasted line: be admitted, fetch data and state, train, average.

    Ctrl-C leaves cleanly; run it again to go on with the same identity.
    """
    flags = dict(locals())
    del flags["invite"]

    from peer.config import load_peer_config

    config = load_peer_config(flags)
    # A terminal or a chat may have put spaces into it: the shell then hands it over in pieces.
    text = "".join("".join(invite or ()).split())
    if text:
        from protocol.invite import decode_invite

        decode_invite(text)  # a mistyped line is told before anything heavy is imported

    from peer.doctor import check_before_join
    from peer.worker_process import early_worker

    check_before_join(config, text)
    with early_worker() as worker:
        # both import torch, which takes seconds: side by side
        from peer.daemon import run_peer

        raise typer.Exit(run_peer(config, text, worker))


def doctor(
    invite: Annotated[
        list[str] | None,
        typer.Argument(help="A host's line (potluck1:...), to look at the way there; else the last run's host."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    state_dir: Annotated[Path | None, typer.Option(help="Where identity and progress are kept.")] = None,
    listen_host: Annotated[str | None, typer.Option(help="Address on which other peers reach this one.")] = None,
    listen_port: Annotated[int | None, typer.Option(help="TCP port for other peers; 0 for any.")] = None,
    announce_host: Annotated[
        str | None, typer.Option(help="Address that others are told, where a router forwards the port.")
    ] = None,
    no_listen: Annotated[bool | None, typer.Option("--no-listen", help="Take no inbound connections.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.")] = None,
) -> None:
    """Look for what would stand in the way of a run on this machine, and say how to mend it.

    With an invite, or a run that was joined before, also on the way to its host; the invite is not used up. Each line is
    ok, warn or fail; ends with 4 when one fails, else with 0. Writes nothing.
    """
    flags = {key: value for key, value in locals().items() if key not in ("invite", "as_json")}

    from peer.config import load_peer_config
    from peer.doctor import run_doctor

    text = "".join("".join(invite or ()).split())
    raise typer.Exit(run_doctor(load_peer_config(flags), text, as_json=as_json))


def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Keep everything here; a temporary folder if not given.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the summary for machines to this file.")
    ] = None,
    plot_file: Annotated[Path, typer.Option("--plot", help="Where the loss curve goes.")] = Path("potluck-demo.png"),
    total_tokens: Annotated[
        int, typer.Option("--tokens", help="How many tokens the three peers train together.")
    ] = 1_228_800,
    limit_s: Annotated[float, typer.Option(help="Give up after this many seconds.")] = 900.0,
) -> None:
    """Run a host and three peers on this machine and train a small model on Python's own source text.

    One peer is slowed to a third; one is killed half-way, comes back and catches up.
    """
    from peer.demo import DemoOptions, run_demo

    options = DemoOptions(
        directory=directory, json_file=json_file, plot_file=plot_file, total_tokens=total_tokens, limit_s=limit_s
    )
    raise typer.Exit(run_demo(options))
