"""`potluck checkpoint`: fetch, list, verify, export and push, on a host's machine and on a peer's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protocol.errors import ConfigError
from protocol.tables import examples

if TYPE_CHECKING:
    from averaging.state.run_model import PeerModels

    LoadModels = Callable[[], PeerModels]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
_StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", help="A host's or a peer's folder; both usual ones if not given."),
]
_Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="A checkpoint's folder, its round or name in the list, a host's or a peer's folder, or \"latest\".",
    ),
]


def add_checkpoint_commands(app: typer.Typer, load_models: LoadModels) -> None:
    """Add the commands to `potluck checkpoint`. `load_models` imports a peer's ways to a run's model."""
    fetching = ("potluck checkpoint fetch", "potluck checkpoint fetch potluck1:... --out models")
    app.command("fetch", epilog=examples(*fetching))(_fetch_command(load_models))
    listing = ("potluck checkpoint list", "potluck checkpoint list --json")
    app.command("list", epilog=examples(*listing))(_list_command(load_models))
    verifying = ("potluck checkpoint verify latest", "potluck checkpoint verify CHECKPOINT_DIR")
    app.command("verify", epilog=examples(*verifying))(_verify_command(load_models))
    exporting = ("potluck checkpoint export latest my-model", "potluck checkpoint export latest my-adapter --adapter")
    pushing = ("potluck checkpoint push file:///mnt/models", "potluck checkpoint push s3://my-bucket/run-1")
    app.command("push", epilog=examples(*pushing))(_push_command(load_models))
    app.command("export", epilog=examples(*exporting))(_export_command(load_models))


def _push_command(load_models: LoadModels) -> Callable[..., None]:
    def checkpoint_push(
        url: Annotated[
            str,
            typer.Argument(
                metavar="URL", help="file://, s3://, gs:// or hf://; credentials come from the environment."
            ),
        ],
        path: Annotated[
            str,
            typer.Option("--checkpoint", help='A checkpoint\'s folder, its round or name in the list, or "latest".'),
        ] = "latest",
        state_dir: _StateDir = None,
    ) -> None:
        """Copy a checkpoint and its export to a folder or bucket, and verify them there.

        The place then holds this checkpoint alone, and newest.json with the hash
        of each file. A host does the same by itself where its run.toml has
        checkpoint.push.
        """
        from tempfile import TemporaryDirectory

        from averaging.host.progress import shown_progress
        from coordinator.push.push_kinds import check_push
        from coordinator.run.named_checkpoint import opened_checkpoint

        check_push(url)
        from coordinator.push.push import push_checkpoint

        with (
            opened_checkpoint(path, load_models(), state_dir) as folder,
            TemporaryDirectory(prefix="potluck-push-") as scratch,
            shown_progress("pushing") as show,
        ):
            pushed = push_checkpoint(url, folder, Path(scratch) / "export", on_bytes=show)
        typer.echo(f"pushed and verified: round {pushed.index}, {pushed.num_bytes / 1e6:.2f} MB, to {url}")

    return checkpoint_push


def _fetch_command(load_models: LoadModels) -> Callable[..., None]:
    def checkpoint_fetch(
        invite: Annotated[
            list[str] | None,
            typer.Argument(help="The host's line (potluck1:...); leave out for a run that was joined before."),
        ] = None,
        run: Annotated[str, typer.Option("--run", help="Name or id of a joined run; the last one if not given.")] = "",
        out: Annotated[
            Path | None, typer.Option(help="Folder to write it to; the peer's folder of the run if not given.")
        ] = None,
        state_dir: Annotated[
            Path | None, typer.Option("--state-dir", help="The peer's folder, as at `potluck join`.")
        ] = None,
    ) -> None:
        """Download the run's newest model from its members and its host, and verify it.

        Every round since the start is verified by the signatures of its peers, as
        at a join. Trains nothing. Interrupted, it goes on where it was.
        """
        from coordinator.run.named_checkpoint import fetch_checkpoint

        line = "".join("".join(invite or ()).split())
        model, path = fetch_checkpoint(load_models(), line, run, state_dir, out)
        typer.echo(f"fetched: round {model.units[0].state.index} of {model.manifest.config.run.name}, {model.proof}")
        typer.echo(f"its folder: {path}")
        typer.echo("next: potluck generate FOLDER --prompt TEXT, or potluck checkpoint export FOLDER OUT_DIR")

    return checkpoint_fetch


def _list_command(load_models: LoadModels) -> Callable[..., None]:
    def checkpoint_list(state_dir: _StateDir = None, as_json: AsJson = False) -> None:
        """List the run's checkpoints, the newest last; on a peer's machine those that were fetched."""
        from averaging.host.daemon_views import columns_of_output
        from coordinator.run.checkpoint_list import checkpoint_lines, list_checkpoints

        rows = list_checkpoints(state_dir, load_models)
        # A name that is cut cannot be pasted: a pipe gets whole ones, and a terminal as much as it holds.
        typer.echo(json.dumps(rows) if as_json else "\n".join(checkpoint_lines(rows, columns_of_output())))

    return checkpoint_list


def _verify_command(load_models: LoadModels) -> Callable[..., None]:
    def checkpoint_verify(path: _Checkpoint, state_dir: _StateDir = None) -> None:
        """Recompute the state root from the files and compare; trusts nothing that the folder says."""
        from averaging.host.progress import shown_progress
        from coordinator.checkpoints.verify import verify_checkpoint
        from coordinator.run.named_checkpoint import opened_checkpoint

        with opened_checkpoint(path, load_models(), state_dir) as folder, shown_progress("verifying") as show:
            sentence = verify_checkpoint(folder, show)
        typer.echo(sentence)

    return checkpoint_verify


def _export_command(load_models: LoadModels) -> Callable[..., None]:
    def checkpoint_export(
        path: _Checkpoint,
        target: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="A new or empty folder.")],
        expert: Annotated[
            int | None, typer.Option(help="In a run of experts: the expert to write, with the trunk.")
        ] = None,
        adapter: Annotated[
            bool, typer.Option("--adapter", help="In a run with an adapter: write the adapter alone, as peft reads it.")
        ] = False,
        merged: Annotated[
            bool, typer.Option("--merged", help="In a run with an adapter: write the base with the adapter merged in.")
        ] = False,
        base: Annotated[
            Path | None,
            typer.Option(help="Data folder with the base of an adapter; the one beside the checkpoint if not given."),
        ] = None,
        state_dir: _StateDir = None,
    ) -> None:
        """Verify a checkpoint and write its model as safetensors in the Hugging Face Llama layout."""
        from averaging.host.progress import shown_progress
        from coordinator.checkpoints.verify import adapter_sentence, export_sentence
        from coordinator.run.named_checkpoint import opened_checkpoint

        _check_form(expert, base, is_adapter=adapter, is_merged=merged)
        with opened_checkpoint(path, load_models(), state_dir) as folder, shown_progress("exporting") as show:
            if adapter or merged:
                sentence = adapter_sentence(folder, target, is_merged=merged, base=base, show=show)
            else:
                sentence = export_sentence(folder, target, expert, show)
        typer.echo(sentence)

    return checkpoint_export


def _check_form(expert: int | None, base: Path | None, *, is_adapter: bool, is_merged: bool) -> None:
    """Refuse options that contradict each other. Raises ConfigError."""
    if is_adapter and is_merged:
        raise ConfigError("--adapter and --merged", "one of both")
    if expert is not None and (is_adapter or is_merged):
        raise ConfigError("--expert with --adapter or --merged", "one of them: a run has experts or an adapter")
    if base is not None and not is_merged:
        raise ConfigError("--base without --merged", "both, or none")
