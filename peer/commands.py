"""The volunteer's and the newcomer's commands: join, demo and generate. Each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_commands(app: typer.Typer) -> None:
    """Put this room's commands on the command line."""
    app.command()(join)
    app.command()(demo)
    app.command()(generate)


def join(
    invite: Annotated[
        list[str] | None,
        typer.Argument(help="The line the host gave you (potluck1:...); leave out to go on with the last run."),
    ] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where identity and progress are kept.")] = None,
    listen_host: Annotated[str | None, typer.Option(help="Address on which other peers reach this one.")] = None,
    listen_port: Annotated[int | None, typer.Option(help="TCP port for other peers; 0 for any.")] = None,
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

    from peer.worker_process import early_worker

    with early_worker() as worker:
        # both import torch, which takes seconds: side by side
        from peer.daemon import run_peer

        raise typer.Exit(run_peer(config, text, worker))


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


def generate(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT_DIR", help="A checkpoint's folder.")],
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "",
    tokens: Annotated[int, typer.Option(help="Write at most so many tokens; one is a byte.")] = 256,
    temperature: Annotated[float, typer.Option(help="Lower is safer and duller; 0 takes the likeliest token.")] = 0.7,
    top_k: Annotated[int, typer.Option(help="Draw from the so many likeliest tokens; 0 for all.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts, at the end.")] = False,
) -> None:
    """Let the model of a checkpoint go on with a text, on the CPU; ends at the model's end mark.

    Bytes that are no UTF-8 are shown as the replacement sign.
    """
    from peer.sampling import Sampling

    sampling = Sampling(tokens, seed, temperature, top_k)
    from peer.checkpoint_sample import print_text, text_json

    if as_json:
        typer.echo(text_json(checkpoint, prompt, sampling))
    else:
        print_text(checkpoint, prompt, sampling)
