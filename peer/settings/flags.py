"""The flags that override a volunteer's settings, one field each, named as in `PeerConfig`; and commands that take them all."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, TypeVar, get_type_hints

import typer


@dataclass(frozen=True)
class PlaceFlags:
    """Where a peer keeps its state, listens and trains. None: not given."""

    state_dir: Annotated[Path | None, typer.Option(help="Where identity and progress are kept.")] = None
    listen_host: Annotated[
        str | None, typer.Option(help="Address on which other peers reach this one; 0.0.0.0, the default, for all.")
    ] = None
    listen_port: Annotated[int | None, typer.Option(help="TCP port for other peers; 0, the default, for any.")] = None
    bulk_port: Annotated[
        int | None,
        typer.Option(help="TCP port for weights and data; 0 for any, the one after --listen-port if not given."),
    ] = None
    announce_host: Annotated[
        str | None, typer.Option(help="Address that others are told, where a router forwards the ports.")
    ] = None
    no_listen: Annotated[bool | None, typer.Option("--no-listen", help="Take no inbound connections.")] = None
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or mps; auto, the default, takes the best there is.")
    ] = None

    def values(self) -> dict[str, object]:
        """By name, None for those that were not given."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class JoinFlags(PlaceFlags):
    """What a peer may use, and when, too."""

    http_port: Annotated[
        int | None, typer.Option(help="Port of the status page on this machine; 0, the default, for any.")
    ] = None
    num_threads: Annotated[
        int | None, typer.Option(help="CPU threads for training; 0, the default, lets torch choose.")
    ] = None
    slowdown: Annotated[
        float | None, typer.Option(help="Train at 1/N of full speed; 1, the default, is all of it.")
    ] = None
    expert: Annotated[
        str | None,
        typer.Option(help='Experts to hold in a run of experts: "0" or "0,1"; what the run lacks if not given.'),
    ] = None
    weekly_hours: Annotated[
        str | None,
        typer.Option(help='Train only then: "mon-fri 22:00-07:00, sat-sun 00:00-24:00"; always if not given.'),
    ] = None
    only_when_idle: Annotated[
        bool | None, typer.Option("--only-when-idle", help="Train only after five minutes without input.")
    ] = None
    duty_percent: Annotated[
        float | None, typer.Option(help="Train in so much of the time; 100, the default, is all of it.")
    ] = None
    train_on_battery: Annotated[
        bool | None, typer.Option("--train-on-battery", help="Train also while this machine runs on its battery.")
    ] = None
    upload_bytes_per_s: Annotated[
        int | None,
        typer.Option(help="Cap on sending weights and data; 0, the default, for a share of what the link carries."),
    ] = None
    download_bytes_per_s: Annotated[
        int | None, typer.Option(help="Cap on fetching them; 0, the default, for none.")
    ] = None
    daily_quota_gb: Annotated[
        float | None, typer.Option(help="Most to send and receive in a day; 0, the default, for any.")
    ] = None
    max_gpu_celsius: Annotated[
        int | None, typer.Option(help="Train only while the card is cooler; 0, the default, for any.")
    ] = None
    max_cpu_celsius: Annotated[
        int | None, typer.Option(help="Train only while the processor is cooler; 0, the default, for any.")
    ] = None
    max_gpu_memory_gb: Annotated[
        float | None,
        typer.Option(help="Most that training takes of the card's memory, in GB of 1e9 bytes; all of it if not given."),
    ] = None
    max_memory_gb: Annotated[
        float | None,
        typer.Option(help="Train only while all of this peer takes less memory, in GB of 1e9 bytes; any if not given."),
    ] = None


Flags = TypeVar("Flags", bound=PlaceFlags)


def taking(kind: type[Flags]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that is called with `flags`, one `kind`, becomes one that typer can read: with each of its fields as a parameter."""

    def widen(command: Callable[..., None]) -> Callable[..., None]:
        names = {field.name for field in fields(kind)}
        build: Callable[..., Flags] = kind

        @functools.wraps(command)
        def widened(*arguments: object, **options: object) -> None:
            flags = build(**{name: options.pop(name) for name in names & options.keys()})
            command(*arguments, flags=flags, **options)

        kinds = {**get_type_hints(command, include_extras=True), **get_type_hints(kind, include_extras=True)}
        own = [p for p in inspect.signature(command).parameters.values() if p.name != "flags"]
        shown = [Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default) for f in fields(kind)]
        first = [p for p in own if p.kind is not Parameter.KEYWORD_ONLY]
        last = [p for p in own if p.kind is Parameter.KEYWORD_ONLY]
        parameters = [p.replace(annotation=kinds[p.name]) for p in (*first, *shown, *last)]
        widened.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        widened.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return widened

    return widen
