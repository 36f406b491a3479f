"""Decides what the owner allows now: settings, sensor readings and time -> a decision with its reason.

A limit that is exceeded stops training at once. Training resumes only after good readings for a while, and for temperatures some
degrees lower, so that it does not flap. The owner's pause and weekly hours take effect at once, in both directions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from peer.settings.hours_core import DAY_MINUTES, WeeklyHours, minute_name
from protocol.tables import duration

COOLER_BY_CELSIUS: Final = 5.0
"""Training resumes this far below the ceiling. A card cools by as much within seconds, so a smaller step would flap."""

COOL_FOR_S: Final = 30.0
"""Fans and case cool more slowly than the sensor."""

STOPPED_BYTES_PER_S: Final = 1.0
"""Stops the bulk lane. Control messages, some kilobytes a minute, do not pass through it."""

PLUGGED_FOR_S: Final = 10.0
"""A loose plug comes and goes."""

ROOMY_SHARE: Final = 0.9
"""Training resumes below this share of the allowed memory. Its first step takes back much of the memory that a pause freed."""

ROOMY_FOR_S: Final = 30.0
"""A stopping process frees its memory in pieces. Reacting within seconds would flap."""


@dataclass(frozen=True, slots=True)
class OwnerPause:
    """`potluck pause`: until a time, or until `potluck resume`.

    Attributes:
        until_unix_s: when it ends by itself, None for never.
        damage: why the file cannot be read, empty for a good one. Training stops if it is damaged.
    """

    until_unix_s: float | None = None
    damage: str = ""


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The owner's settings.

    Attributes:
        weekly_hours: when training is welcome, None for always.
        train_on_battery: train also while the machine runs on its battery.
        max_gpu_celsius: ceiling of each NVIDIA card that trains, 0 for none.
        max_cpu_celsius: ceiling of the processor, 0 for none.
        idle_after_s: train only after this many seconds without use of the machine, 0 for always.
        duty_percent: share of the time to train in, 100 for all of it.
        upload_bytes_per_s, download_bytes_per_s: caps of the bulk lane, 0 for none.
        daily_quota_bytes: most to send and receive in a calendar day of the owner, 0 for any.
        max_memory_bytes: most memory of the peer's processes together, 0 for any.
    """

    weekly_hours: WeeklyHours | None = None
    train_on_battery: bool = False
    max_gpu_celsius: float = 0.0
    max_cpu_celsius: float = 0.0
    idle_after_s: float = 0.0
    duty_percent: float = 100.0
    upload_bytes_per_s: float = 0.0
    download_bytes_per_s: float = 0.0
    daily_quota_bytes: int = 0
    max_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CardHeat:
    """The temperature of one of several cards that train.

    Attributes:
        name: for people, as "card 1".
        world: index of the replica that it trains, alone or with others: none of them trains while it is too hot.
        celsius: None if it is not known.
    """

    name: str
    world: int
    celsius: float | None = None


@dataclass(frozen=True, slots=True)
class Readings:
    """Sensor readings and clocks at one moment; None for an unknown value.

    Attributes:
        now_s: monotonic.
        local: the owner's wall clock, with its zone.
        pause: the owner's pause, if any.
        is_on_battery: None without a battery.
        battery_percent: charge.
        gpu_celsius: of the NVIDIA card that trains.
        cards: of each, where several train; `gpu_celsius` does not count then.
        cpu_celsius: of the hottest core.
        idle_s: seconds since the machine was last used, infinity if nobody is logged in.
        today_bytes: sent and received since midnight.
        memory_bytes: resident, of the peer's processes together.
    """

    now_s: float
    local: datetime
    pause: OwnerPause | None = None
    is_on_battery: bool | None = None
    battery_percent: float | None = None
    gpu_celsius: float | None = None
    cards: tuple[CardHeat, ...] = ()
    cpu_celsius: float | None = None
    idle_s: float | None = None
    today_bytes: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Latch:
    """Closes on one bad reading and opens after good ones for a while.

    Attributes:
        fine_since_s: since when every reading was good, while closed.
    """

    is_closed: bool = False
    fine_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class ControlsState:
    """State between two readings. `cards` are in the order of the readings'."""

    battery: Latch = Latch()
    gpu: Latch = Latch()
    cards: tuple[Latch, ...] = ()
    cpu: Latch = Latch()
    memory: Latch = Latch()


@dataclass(frozen=True, slots=True)
class TrainingAllowance:
    """The limits that apply now.

    Attributes:
        share: of full speed, 0 for no training.
        reason: what holds training back and when that changes, in one sentence; empty if nothing does.
        is_kept: False if a limit is set that no sensor here can check; `reason` names it.
        upload_bytes_per_s, download_bytes_per_s: caps of the bulk lane, None for none.
        is_held: trained tokens stay here. They could not be sent, and no round should wait for them.
        is_too_hot: heat is the reason that holds training back.
        worlds_paused: why some of several replicas are paused though others train, by their index.
    """

    share: float = 1.0
    reason: str = ""
    is_kept: bool = True
    upload_bytes_per_s: float | None = None
    download_bytes_per_s: float | None = None
    is_held: bool = False
    is_too_hot: bool = False
    worlds_paused: tuple[tuple[int, str], ...] = ()

    @property
    def may_compute(self) -> bool:
        """Whether anything may be trained or evaluated."""
        return self.share > 0


def turned(latch: Latch, *, is_bad: bool, is_fine: bool, now_s: float, fine_for_s: float) -> Latch:
    """The latch after a reading. A reading that is neither bad nor fine leaves it unchanged. It opens only after an unbroken time
    of fine readings.
    """
    if is_bad:
        return Latch(is_closed=True)
    if not latch.is_closed:
        return latch
    if not is_fine:
        return Latch(is_closed=True)
    since_s = now_s if latch.fine_since_s is None else latch.fine_since_s
    return Latch() if now_s - since_s >= fine_for_s else Latch(is_closed=True, fine_since_s=since_s)


def decide(
    settings: ControlSettings, state: ControlsState, readings: Readings
) -> tuple[ControlsState, TrainingAllowance]:
    """The reasons that hold training back, the owner's pause first, and the state for the next reading."""
    state = _remembered(settings, state, readings)
    hot: tuple[Callable[[], str], ...] = (
        lambda: _all_too_hot(settings, state, readings),
        lambda: _too_hot("processor", state.cpu, settings.max_cpu_celsius, readings.cpu_celsius),
    )
    rules: tuple[Callable[[], str], ...] = (
        lambda: _paused(readings),
        lambda: _on_battery(state, readings),
        lambda: _out_of_hours(settings, readings),
        lambda: _in_use(settings, readings),
        lambda: _quota_used(settings, readings),
        *hot,
        lambda: _too_large(settings, state, readings),
    )
    is_held = bool(_quota_used(settings, readings))
    allowed = TrainingAllowance(
        upload_bytes_per_s=STOPPED_BYTES_PER_S if is_held else settings.upload_bytes_per_s or None,
        download_bytes_per_s=STOPPED_BYTES_PER_S if is_held else settings.download_bytes_per_s or None,
        is_held=is_held,
    )
    for rule in rules:
        if reason := rule():
            return state, replace(allowed, share=0.0, reason=reason, is_too_hot=rule in hot)
    unkept = _unkept(settings, readings)
    share = settings.duty_percent / 100
    slowed = f"trains {settings.duty_percent:g}% of the time, as its owner set it" if share < 1 else ""
    hot_worlds = tuple(sorted(_hot_worlds(settings, state, readings).items()))
    reason = "; ".join(filter(None, (unkept, slowed, *(why for _, why in hot_worlds))))
    return state, replace(allowed, share=share, reason=reason, is_kept=not unkept, worlds_paused=hot_worlds)


def _remembered(settings: ControlSettings, state: ControlsState, readings: Readings) -> ControlsState:
    now_s = readings.now_s
    is_drained = readings.is_on_battery is True and not settings.train_on_battery
    battery = turned(state.battery, is_bad=is_drained, is_fine=not is_drained, now_s=now_s, fine_for_s=PLUGGED_FOR_S)
    gpu = _heated(state.gpu, settings.max_gpu_celsius, None if readings.cards else readings.gpu_celsius, now_s)
    latches = state.cards if len(state.cards) == len(readings.cards) else (Latch(),) * len(readings.cards)
    cards = tuple(
        _heated(latch, settings.max_gpu_celsius, card.celsius, now_s)
        for latch, card in zip(latches, readings.cards, strict=True)
    )
    cpu = _heated(state.cpu, settings.max_cpu_celsius, readings.cpu_celsius, now_s)
    memory = _filled(state.memory, settings.max_memory_bytes, readings.memory_bytes, now_s)
    return replace(state, battery=battery, gpu=gpu, cards=cards, cpu=cpu, memory=memory)


def _heated(latch: Latch, ceiling: float, celsius: float | None, now_s: float) -> Latch:
    """Without a reading the latch stays unchanged: a hot device is not assumed to have cooled."""
    if not ceiling:
        return Latch()
    is_bad = celsius is not None and celsius >= ceiling
    is_fine = celsius is not None and celsius <= ceiling - COOLER_BY_CELSIUS
    return turned(latch, is_bad=is_bad, is_fine=is_fine, now_s=now_s, fine_for_s=COOL_FOR_S)


def _filled(latch: Latch, most_bytes: int, held_bytes: int, now_s: float) -> Latch:
    if not most_bytes:
        return Latch()
    is_fine = held_bytes < ROOMY_SHARE * most_bytes
    return turned(latch, is_bad=held_bytes > most_bytes, is_fine=is_fine, now_s=now_s, fine_for_s=ROOMY_FOR_S)


def _paused(readings: Readings) -> str:
    pause = readings.pause
    if pause is None:
        return ""
    if pause.damage:
        return f"paused: {pause.damage}; `potluck resume` removes it and trains on"
    if pause.until_unix_s is None:
        return "paused until `potluck resume`"
    if readings.local.timestamp() >= pause.until_unix_s:
        return ""
    until = datetime.fromtimestamp(pause.until_unix_s, readings.local.tzinfo)
    return f"paused until {_shown(until, readings.local)} or `potluck resume`"


def _on_battery(state: ControlsState, readings: Readings) -> str:
    if not state.battery.is_closed:
        return ""
    if not readings.is_on_battery:
        return f"paused until {PLUGGED_FOR_S:.0f} s after it was plugged in"
    full = "" if readings.battery_percent is None else f", {readings.battery_percent:.0f}% full"
    return f"paused until plugged in (on battery power{full})"


def _out_of_hours(settings: ControlSettings, readings: Readings) -> str:
    hours, minute = settings.weekly_hours, week_minute(readings.local)
    if hours is None or hours.are_open(minute):
        return ""
    return f"paused until {minute_name(hours.next_opening(minute))} (weekly hours)"


def _in_use(settings: ControlSettings, readings: Readings) -> str:
    wanted_s, idle_s = settings.idle_after_s, readings.idle_s
    if not wanted_s or (idle_s is not None and idle_s >= wanted_s):
        return ""
    if idle_s is None:
        return "paused: this machine cannot tell whether anybody uses it; trains without --only-when-idle"
    return f"paused until nobody has used this machine for {duration(wanted_s)} (last input {duration(idle_s)} ago)"


def _quota_used(settings: ControlSettings, readings: Readings) -> str:
    quota, used = settings.daily_quota_bytes, readings.today_bytes
    if not quota or used < quota:
        return ""
    return f"paused until midnight (the daily quota of {quota / 1e9:g} GB is used up)"


def _too_hot(part: str, latch: Latch, ceiling: float, celsius: float | None) -> str:
    if not latch.is_closed:
        return ""
    now = "it was too hot at its last reading" if celsius is None else f"it is at {celsius:.0f} C"
    return f"paused until {_article(part)} was at {ceiling - COOLER_BY_CELSIUS:.0f} C or less for {COOL_FOR_S:.0f} s ({now})"


def _hot_worlds(settings: ControlSettings, state: ControlsState, readings: Readings) -> dict[int, str]:
    """Why replicas with a card that is too hot are paused, by their index; the first such card of each is named."""
    found: dict[int, str] = {}
    for latch, card in zip(state.cards, readings.cards, strict=True):
        reason = _too_hot(card.name, latch, settings.max_gpu_celsius, card.celsius)
        if reason:
            found.setdefault(card.world, reason)
    return found


def _all_too_hot(settings: ControlSettings, state: ControlsState, readings: Readings) -> str:
    """Why nothing trains: the card is too hot, or one of each replica."""
    if not readings.cards:
        return _too_hot("card", state.gpu, settings.max_gpu_celsius, readings.gpu_celsius)
    hot = _hot_worlds(settings, state, readings)
    return next(iter(hot.values())) if len(hot) == len({card.world for card in readings.cards}) else ""


def _too_large(settings: ControlSettings, state: ControlsState, readings: Readings) -> str:
    if not state.memory.is_closed:
        return ""
    most_gb, held_gb = settings.max_memory_bytes / 1e9, readings.memory_bytes / 1e9
    return f"paused until its processes hold less than {ROOMY_SHARE * most_gb:.3g} GB of memory (they hold {held_gb:.3g} GB)"


def _unkept(settings: ControlSettings, readings: Readings) -> str:
    """A limit that is set but that no sensor here can check. Training goes on, and the status says so."""
    several = tuple((card.name, settings.max_gpu_celsius, card.celsius) for card in readings.cards)
    blind = [
        part
        for part, ceiling, celsius in (
            *(several or (("card", settings.max_gpu_celsius, readings.gpu_celsius),)),
            ("processor", settings.max_cpu_celsius, readings.cpu_celsius),
        )
        if ceiling and celsius is None
    ]
    if not blind:
        return ""
    return f"the temperature of {' and '.join(_article(part) for part in blind)} cannot be read here, so its ceiling is not kept"


def _article(part: str) -> str:
    """As "the processor", or as "card 1"."""
    return part if part[-1].isdigit() else f"the {part}"


def week_minute(local: datetime) -> int:
    """Minutes since Monday 00:00 on the owner's wall clock."""
    return local.weekday() * DAY_MINUTES + local.hour * 60 + local.minute


def _shown(time: datetime, now: datetime) -> str:
    """The time of day, with the date if it is another day."""
    return f"{time:%H:%M}" if time.date() == now.date() else f"{time:%Y-%m-%d %H:%M}"
