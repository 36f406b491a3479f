"""Applies the owner's controls: reads the sensors every second, decides, updates the board, and directs the training process.

Only computation stops. The peer stays a member: it votes, serves state and reduces. Its trained tokens go into the next round.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

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
"""Half of the two seconds in which an order of the owner must take effect."""


class Controllable(Protocol):
    """The part of the training process that the controls need."""

    async def pause(self) -> None:
        """Stop training until `resume`."""
        ...

    async def resume(self) -> None:
        """Resume training."""
        ...

    async def set_slowdown(self, factor: float) -> None:
        """Train at 1 / factor of full speed."""
        ...

    def hold(self, is_held: bool) -> None:
        """Hold back trained tokens from rounds, or release them."""
        ...


@runtime_checkable
class Islands(Protocol):
    """A trainer of several replicas that can pause each of them alone."""

    async def set_paused(self, world: int, is_paused: bool, because: str = "") -> None:
        """Pause one replica or let it train again, beside the orders for all."""
        ...


class Capped(Protocol):
    """The part of the network that the controls need."""

    def cap_bulk(self, upload_bytes_per_s: float | None, download_bytes_per_s: float | None) -> None:
        """Set the caps of the bulk lane; None for no cap."""
        ...


class Controls:
    """The controls of one daemon life.

    Args:
        slowdown: the configured divisor of full speed. The allowed share applies on top of it.
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
        """Apply the caps to this network from now on."""
        self._network = network
        network.cap_bulk(self.decision.upload_bytes_per_s, self.decision.download_bytes_per_s)

    async def update(self) -> None:
        """Read the sensors once and apply the decision, except to the training process."""
        readings = await self._sensors.read()
        self._board.cpu_celsius = readings.cpu_celsius
        self._state, decision = decide(self._settings, self._state, readings)
        before, self.decision, self._board.allowed = self.decision, decision, decision
        if (before.share, before.is_kept) != (decision.share, decision.is_kept):
            log.info("controls", training=f"{decision.share:.0%}", reason=decision.reason or "nothing holds it back")
        if self._network is not None:
            self._network.cap_bulk(decision.upload_bytes_per_s, decision.download_bytes_per_s)
        if _orders(before) != _orders(decision):
            changed, self._changed = self._changed, trio.Event()
            changed.set()

    async def keep(self) -> None:
        """Read and apply until cancelled."""
        while True:
            await self.update()
            await trio.sleep(LOOK_EVERY_S)

    async def order(self, trainer: Controllable) -> None:
        """Apply the decisions to the training process until cancelled. The sensors are still read while it is slow to obey."""
        paused: dict[int, str] = {}
        while True:
            changed, share = self._changed, self.decision.share
            trainer.hold(self.decision.is_held)
            if share > 0:
                await trainer.set_slowdown(self._slowdown / share)
                await trainer.resume()
            else:
                await trainer.pause()
            if isinstance(trainer, Islands):
                paused = await _pause_worlds(trainer, paused, dict(self.decision.worlds_paused))
            await changed.wait()


def _orders(decision: TrainingAllowance) -> tuple[float, bool, frozenset[int]]:
    """The part of a decision that the training process is told. The words of a reason change each second."""
    return decision.share, decision.is_held, frozenset(world for world, _ in decision.worlds_paused)


async def _pause_worlds(islands: Islands, before: dict[int, str], now: dict[int, str]) -> dict[int, str]:
    """Pause the replicas that are to be, and let the others train. Returns those that are paused."""
    for world in before.keys() - now.keys():
        await islands.set_paused(world, False)
    for world in now.keys() - before.keys():
        await islands.set_paused(world, True, now[world])
    return now


def _moved_bytes(board: StatusBoard) -> int:
    if board.network is None:
        return 0
    traffic = board.network.traffic()
    return traffic.bytes_up + traffic.bytes_down


def open_controls(config: PeerConfig, board: StatusBoard, clock: Clock) -> Controls:
    """The controls of one daemon with its owner's settings. Nothing has been read yet."""
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
