"""The volunteer's own settings: what this machine offers and where it keeps things. Sources: averaging/host/settings.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, ValidationInfo, field_validator

from averaging.host.settings import DaemonSettings, HostName, ListenHost, NotifyUrl, Port, sources_of
from averaging.network.seams.host_names import ANY_HOST
from averaging.system.usual_folders import state_root
from peer.settings.hours_core import parse_hours
from peer.training.plan.card_plan import Fit, Switch, WishedPrecision, Wishes
from peer.training.plan.gpus_core import AUTO, parse_gpus
from peer.training.plan.layout import WishedSplit
from protocol.errors import ConfigError
from protocol.grids import MOST_G_PER_KWH
from protocol.host.expert_choice import parse_experts
from protocol.identity.chosen_name import ChosenName, checked_name

Ceiling = Annotated[int, Field(ge=0, le=120)]
"""Degrees Celsius, 0 for none. No chip survives more than the maximum."""

Gigabytes = Annotated[float, Field(gt=0.0, le=1e6)]
"""In units of 1e9 bytes. A limit of 0 could never be kept."""


class PlaceConfig(DaemonSettings):
    """A peer's state folder, addresses and device: the settings that `potluck doctor` checks."""

    model_config = sources_of("peer")

    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Network": ("listen_host", "listen_port", "bulk_port", "announce_host", "no_listen"),
        "Training": ("device", "gpus"),
    }

    state_dir: Path = Field(default_factory=lambda: state_root() / "peer")
    """Folder of the identity, the credential, the rounds and cached data. One peer at a time uses it. The user's state folder if not
    given.
    """

    listen_host: ListenHost = ANY_HOST
    """Address on which other peers reach this one: :: for every address of the machine, 0.0.0.0 for every IPv4 one. 127.0.0.1 keeps
    the peer on this machine.
    """

    listen_port: Port = 0
    """TCP port for other peers; 0 for any free one."""

    bulk_port: Port | None = None
    """TCP port for weights and data; 0 for any free one. The port after --listen-port if not given."""

    announce_host: HostName = ""
    """Address that others are told, where a router forwards the ports. The peer's own addresses if not given."""

    no_listen: bool = False
    """Take no inbound connections. The peer still contributes with full weight."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to train on: cpu, cuda or mps; auto takes the best there is."""

    gpus: str = AUTO
    """Cards to train on: auto takes each one that is free, all takes every one, and "0,1" only those. The numbers are torch's, from 0
    on, of the cards that CUDA_VISIBLE_DEVICES leaves; `potluck doctor` lists them. UUIDs as "GPU-..." also work. With --device cpu
    each number is a process.
    """


class PeerConfig(PlaceConfig):
    """Settings of one peer."""

    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "When to train": ("weekly_hours", "time_zone", "only_when_idle", "idle_after_s", "train_on_battery"),
        "Speed and heat": ("duty_percent", "slowdown", "num_threads", "max_gpu_celsius", "max_cpu_celsius"),
        "Memory and disk": ("max_gpu_memory_gb", "max_memory_gb", "cache_bytes"),
        "Traffic": ("upload_bytes_per_s", "download_bytes_per_s", "daily_quota_gb"),
        "Name, page and notices": (
            "nickname",
            "team",
            "screen",
            "http_host",
            "http_port",
            "notify_url",
            "grid_g_per_kwh",
        ),
        "Training": (*PlaceConfig.panels["Training"], "fit", "precision", "split", "compile", "expert", "audit_share"),
        "Network": (*PlaceConfig.panels["Network"], "reduce_only", "parting_s"),
    }

    http_host: str = "127.0.0.1"
    """Address of the status page and metrics. Anybody who reaches it can read them."""

    http_port: Port = 0
    """Port of the status page and metrics; 0 for any free one."""

    fit: Fit = "auto"
    """Memory of the card to spare. auto takes the fastest way to train that fits; fast spares nothing; small and smallest take less
    memory and more time, as for a card that other programs use too.
    """

    precision: WishedPrecision = "auto"
    """Type that matrix products are computed in: fp32, bf16 or fp16; auto takes what the card is fast in."""

    split: WishedSplit = "auto"
    """How several cards train: as islands, each with a model of its own, or as one model, with its parameters shared out (shard), also
    each text (context) or each product (tensor). auto takes what is fast and fits. In a pipeline run only islands
    and shard work: each card holds the whole stage, or some rows of it.
    """

    compile: Switch = "auto"
    """Whether torch compiles the model for the card: on, off, or auto. Without a compiler that works, a line says why not."""

    reduce_only: bool = False
    """Train nothing and hold no state: only sum contributions for peers that nobody can connect to."""

    audit_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.01
    """Share of rounds, 0 to 1, after which a keeper of an open run does another peer's work of the round again, to check its claim. It
    takes twice as many local steps, in a tenth of the time at most. A drawn round takes up to three copies of parameters and moments
    in memory, and none where they have no room. 0 for none.
    """

    num_threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads for training; 0 lets torch choose."""

    slowdown: Annotated[float, Field(ge=1.0, le=1000.0)] = 1.0
    """Train at 1/N of full speed: 3 trains at a third."""

    expert: str = ""
    """Experts to hold in a run of experts, as "0" or "0,1". The ones that the run lacks most if not given."""

    weekly_hours: str = ""
    """Hours in which to train, as "mon-fri 22:00-07:00, sat-sun 00:00-24:00". Always if not given."""

    time_zone: str = ""
    """Time zone of those hours, as "Europe/Paris". This machine's own if not given."""

    only_when_idle: bool = False
    """Train only when nobody has used the machine for a while. Never trains if that is unknown."""

    idle_after_s: Annotated[float, Field(ge=1.0, le=86_400.0)] = 300.0
    """Seconds without input after which the machine counts as idle, for --only-when-idle."""

    duty_percent: Annotated[float, Field(ge=1.0, le=100.0)] = 100.0
    """Percentage of the time in which to train, besides --slowdown: 25 trains a quarter of it."""

    train_on_battery: bool = False
    """Train also while this machine runs on its battery."""

    max_gpu_celsius: Ceiling = 0
    """Pause training while the NVIDIA card that trains is this hot or hotter; 0 for no limit."""

    max_cpu_celsius: Ceiling = 0
    """Pause training while the processor is this hot or hotter; 0 for no limit."""

    upload_bytes_per_s: Annotated[int, Field(ge=0)] = 0
    """Limit on sending weights and data; 0 for a share of what the link is measured to carry."""

    download_bytes_per_s: Annotated[int, Field(ge=0)] = 0
    """Limit on receiving weights and data; 0 for none."""

    daily_quota_gb: Annotated[float, Field(ge=0.0, le=1e6)] = 0.0
    """Most to send and receive in a day, in GB of 1e9 bytes; 0 for no limit. Above it only control messages go until midnight."""

    max_gpu_memory_gb: Gigabytes | None = None
    """Limit on training's memory on the card, in GB of 1e9 bytes, without the driver's own. A model that does not fit is not
    trained. All of it if not given.
    """

    max_memory_gb: Gigabytes | None = None
    """Pause training while all processes of this peer hold more memory, in GB of 1e9 bytes. Goes on below nine tenths of it. No
    limit if not given.
    """

    cache_bytes: Annotated[int, Field(ge=1 << 20)] = 2 << 30
    """Most that cached text takes on disk, in bytes. Weights that a run begins with, or trains an adapter over, come on top."""

    parting_s: Annotated[float, Field(ge=0.0, le=15.0)] = 5.0
    """Seconds that a peer which is asked to leave may take to give its work since the last round to others, so that it counts. With 0
    that work is lost.
    """

    screen: Literal["auto", "live", "plain"] = "auto"
    """How progress is shown: live redraws one screen, plain prints lines; auto takes live on a terminal."""

    nickname: Annotated[str, Field(json_schema_extra={"also": "name"})] = ""
    """Name to show beside this peer's own, on the run's page and to everybody in the run: at most 32 characters. Names need not be
    unique. The flag may also be written --name. None if not given.
    """

    team: str = ""
    """Team to count this peer's tokens for, shown as the nickname is: at most 32 characters. None if not given."""

    grid_g_per_kwh: Annotated[float, Field(ge=0.0, le=MOST_G_PER_KWH)] | None = None
    """Grams of CO2 of a kilowatt-hour here, for the carbon of this peer's energy. The run's grid counts if not given."""

    notify_url: NotifyUrl = ""
    """Web address that gets a line of JSON about what is unusual or final: the run is complete, training is too hot or has stopped, at
    most one of a kind an hour. Only https, or http on this machine. Better in peer.toml or a variable than as a flag, since others on
    this machine can read flags. No notices if not given.
    """

    @property
    def wishes(self) -> Wishes:
        """The owner's part of the card's plan."""
        return Wishes(fit=self.fit, precision=self.precision, compiles=self.compile)

    @property
    def chosen(self) -> ChosenName:
        """The name and the team that others are told."""
        return ChosenName(self.nickname, self.team)

    @field_validator("nickname", "team")
    @classmethod
    def _check_name(cls, text: str, info: ValidationInfo) -> str:
        return checked_name(text, str(info.field_name))

    @field_validator("gpus")
    @classmethod
    def _check_gpus(cls, text: str) -> str:
        parse_gpus(text)
        return text

    @field_validator("weekly_hours")
    @classmethod
    def _check_hours(cls, text: str) -> str:
        if text:
            parse_hours(text)
        return text

    @field_validator("expert")
    @classmethod
    def _check_experts(cls, text: str) -> str:
        if text:
            parse_experts(text)
        return text

    @field_validator("time_zone")
    @classmethod
    def _check_zone(cls, name: str) -> str:
        if name:
            zone_of(name)
        return name


def zone_of(name: str) -> ZoneInfo | None:
    """The time zone of that name, None for this machine's own.

    Raises:
        ConfigError: this machine knows no zone of that name.
    """
    try:
        return ZoneInfo(name) if name else None
    except (KeyError, ValueError, OSError) as error:  # unknown, a path, or a folder of zones
        raise ConfigError(
            f"peer setting time_zone is {name[:60]!r}",
            'a zone that this machine knows, as "Europe/Paris"',
            "set it with --time-zone, POTLUCK_PEER_TIME_ZONE or in peer.toml",
        ) from error


def whole_bytes(gigabytes: float | None) -> int:
    """Whole bytes of a limit, at least 1, so that a tiny limit stays a limit; 0 if none is set."""
    return 0 if gigabytes is None else max(1, round(gigabytes * 1e9))
