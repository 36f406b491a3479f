"""The owner's controls at work: looks at the machine every second, decides, tells the board, and orders the training process.

Only compute stops. The peer stays a member: it votes, serves state and reduces, and what it has trained goes into the next round.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import structlog
import trio

from averaging.network.seams.interfaces import Clock
from peer.owner.controls_core import ControlSettings, ControlsState, TrainingAllowance, decide
from peer.owner.idle import IdleMeter
from peer.owner.sensors import MachineSensors, Sensors
from peer.settings.config import PeerConfig, whole_bytes, zone_of
from peer.settings.hours_core import parse_hours

if TYPE_CHECKING:
    from peer.status.status_board import StatusBoard

log = structlog.get_logger()

LOOK_EVERY_S: Final = 1.0
"""Half of the two seconds in which an order of the owner's has to be obeyed."""


class Controllable(Protocol):
    """What the controls need of the training process."""

    async def pause(self) -> None:
        """Train nothing until `resume`."""
        ...

    async def resume(self) -> None:
        """Train on."""
        ...

    async def set_slowdown(self, factor: float) -> None:
        """Train at 1 / factor of full speed."""
        ...

    def hold(self, is_held: bool) -> None:
        """Whether what was trained stays here for now."""
        ...


class Capped(Protocol):
    """What the controls need of the network."""

    def cap_bulk(self, upload_bytes_per_s: float | None, download_bytes_per_s: float | None) -> None:
        """Caps of the bulk lane from now on, None for none."""
        ...


class Controls:
    """One for the life of the daemon.

    Args:
        slowdown: the divisor of full speed that was set once; a share comes on top of it.
    """

    def __init__(self, settings: ControlSettings, sensors: Sensors, board: StatusBoard, slowdown: float = 1.0) -> None:
        self._settings = settings
        self._sensors = sensors
        self._board = board
        self._slowdown = slowdown
        self._state = ControlsState()
        self._changed = trio.Event()
        self._network: Capped | None = None
        self.decision = TrainingAllowance()

    def cap(self, network: Capped) -> None:
        """Hold the network to the caps, from now on."""
        self._network = network
        network.cap_bulk(self.decision.upload_bytes_per_s, self.decision.download_bytes_per_s)

    async def look(self) -> None:
        """One look and what follows from it, for all but the training process."""
        readings = await self._sensors.read()
        self._board.cpu_celsius = readings.cpu_celsius
        self._state, decision = decide(self._settings, self._state, readings)
        before, self.decision, self._board.allowed = self.decision, decision, decision
        if (before.share, before.is_kept) != (decision.share, decision.is_kept):
            log.info("controls", training=f"{decision.share:.0%}", reason=decision.reason or "nothing holds it back")
        if self._network is not None:
            self._network.cap_bulk(decision.upload_bytes_per_s, decision.download_bytes_per_s)
        if (before.share, before.is_held) != (decision.share, decision.is_held):
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    async def keep(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await trio.sleep(LOOK_EVERY_S)

    async def order(self, trainer: Controllable) -> None:
        """Hold the training process to what is allowed, until cancelled. Looks go on while it is slow to obey."""
        while True:
            changed, share = self._changed, self.decision.share
            trainer.hold(self.decision.is_held)
            if share > 0:
                await trainer.set_slowdown(self._slowdown / share)
                await trainer.resume()
            else:
                await trainer.pause()
            await changed.wait()


def _moved_bytes(board: StatusBoard) -> int:
    if board.network is None:
        return 0
    traffic = board.network.traffic()
    return traffic.bytes_up + traffic.bytes_down


def open_controls(config: PeerConfig, board: StatusBoard, clock: Clock) -> Controls:
    """The controls of one daemon, as its owner set them; nothing was looked at yet."""
    settings = ControlSettings(
        weekly_hours=parse_hours(config.weekly_hours) if config.weekly_hours else None,
        train_on_battery=config.train_on_battery,
        max_gpu_celsius=config.max_gpu_celsius,
        max_cpu_celsius=config.max_cpu_celsius,
        idle_after_s=config.idle_after_s if config.only_when_idle else 0.0,
        duty_percent=config.duty_percent,
        upload_bytes_per_s=float(config.upload_bytes_per_s),
        download_bytes_per_s=float(config.download_bytes_per_s),
        daily_quota_bytes=round(config.daily_quota_gb * 1e9),
        max_memory_bytes=whole_bytes(config.max_memory_gb),
    )
    idle = IdleMeter() if config.only_when_idle else None
    sensors = MachineSensors(
        config.state_dir, clock, board.machine, zone_of(config.time_zone), idle, partial(_moved_bytes, board)
    )
    return Controls(settings, sensors, board, config.slowdown)
