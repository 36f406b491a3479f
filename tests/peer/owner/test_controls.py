"""The controls in virtual time: a machine whose readings the test sets, a training process that notes its orders."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import trio
import trio.testing

from averaging.network.pacing.bulk_limiter import BulkLimiter
from peer.owner.controls import Controls, open_controls
from peer.owner.controls_core import (
    COOL_FOR_S,
    ROOMY_FOR_S,
    STOPPED_BYTES_PER_S,
    CardHeat,
    ControlSettings,
    OwnerPause,
    Readings,
)
from peer.settings.config import PeerConfig
from peer.settings.hours_core import parse_hours
from peer.status.status_board import StatusBoard
from peer.status.status_of import Sources, status_of
from protocol.ids import PeerId
from tests.virtual import VirtualClock

Clock = trio.testing.MockClock

OBEYED_WITHIN_S = 2.0
NETWORK_WITHIN_S = 5.0
FRAME_BYTES = 65_536
FRIDAY_NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


class _Sensors:
    def __init__(self) -> None:
        self.readings = Readings(0.0, FRIDAY_NOON)

    async def read(self) -> Readings:
        now_s = trio.current_time()
        return replace(self.readings, now_s=now_s, local=FRIDAY_NOON + timedelta(seconds=now_s))


class _Trainer:
    def __init__(self, obeys_after_s: float = 0.1) -> None:
        self.obeys_after_s = obeys_after_s
        self.is_paused = False
        self.slowdown = 1.0
        self.is_held = False

    async def pause(self) -> None:
        await trio.sleep(self.obeys_after_s)
        self.is_paused = True

    async def resume(self) -> None:
        await trio.sleep(self.obeys_after_s)
        self.is_paused = False

    async def set_slowdown(self, factor: float) -> None:
        self.slowdown = factor

    def hold(self, is_held: bool) -> None:
        self.is_held = is_held


class _Network:
    caps: tuple[float | None, float | None] = (0.0, 0.0)

    def cap_bulk(self, upload_bytes_per_s: float | None, download_bytes_per_s: float | None) -> None:
        self.caps = (upload_bytes_per_s, download_bytes_per_s)


class _PacedNetwork:
    """Both directions of a bulk lane that always has a frame to carry."""

    def __init__(self) -> None:
        self.limiters = (BulkLimiter(), BulkLimiter())
        self.moved_bytes = dict.fromkeys(self.limiters, 0)

    def cap_bulk(self, upload_bytes_per_s: float | None, download_bytes_per_s: float | None) -> None:
        for limiter, cap in zip(self.limiters, (upload_bytes_per_s, download_bytes_per_s), strict=True):
            limiter.cap(cap)

    async def stream(self, limiter: BulkLimiter) -> None:
        while True:
            await limiter.pass_bytes(FRAME_BYTES)
            self.moved_bytes[limiter] += FRAME_BYTES

    async def moved_in(self, seconds: float) -> list[int]:
        before = dict(self.moved_bytes)
        await trio.sleep(seconds)
        return [self.moved_bytes[limiter] - before[limiter] for limiter in self.limiters]


class _Scene:
    def __init__(self, settings: ControlSettings, nursery: trio.Nursery, trainer: _Trainer, slowdown: float) -> None:
        self.sensors, self.trainer = _Sensors(), trainer
        self.board = StatusBoard(PeerId("peer"), VirtualClock(), 0.0)
        self.sources = Sources(self.board)
        self.board.say("training", "training")
        self.controls = Controls(settings, self.sensors, self.board, slowdown)
        nursery.start_soon(self.controls.keep)
        nursery.start_soon(self.controls.order, trainer)

    def finds(self, **readings: object) -> None:
        self.sensors.readings = replace(self.sensors.readings, **readings)  # type: ignore[arg-type]


async def _tell(
    story: object, settings: ControlSettings | None = None, *, trainer: _Trainer | None = None, slowdown: float = 1.0
) -> None:
    async with trio.open_nursery() as nursery:
        scene = _Scene(settings or ControlSettings(), nursery, trainer or _Trainer(), slowdown)
        await trio.sleep(5.3)
        await story(scene)  # type: ignore[operator]
        nursery.cancel_scope.cancel()


async def test_a_pause_is_obeyed_within_two_seconds_and_so_is_its_end(autojump_clock: Clock) -> None:
    async def story(scene: _Scene) -> None:
        assert status_of(scene.sources).state == "training"
        scene.finds(pause=OwnerPause())
        await trio.sleep(OBEYED_WITHIN_S)
        assert scene.trainer.is_paused
        status = status_of(scene.sources)
        assert (status.state, status.allowed_share) == ("paused", 0.0)
        assert status.reason == status.allowed_reason == "paused until `potluck resume`"
        scene.finds(pause=None)
        await trio.sleep(OBEYED_WITHIN_S)
        assert not scene.trainer.is_paused
        assert status_of(scene.sources).state == "training"

    await _tell(story)


async def test_the_status_has_the_processors_temperature_where_one_is_measured(autojump_clock: Clock) -> None:
    async def story(scene: _Scene) -> None:
        assert status_of(scene.sources).cpu_celsius is None
        scene.finds(cpu_celsius=63.5)
        await trio.sleep(OBEYED_WITHIN_S)
        assert status_of(scene.sources).cpu_celsius == 63.5

    await _tell(story)


async def test_each_limit_stops_training_within_two_seconds(autojump_clock: Clock) -> None:
    async def story(scene: _Scene) -> None:
        for bad, fine in (
            ({"is_on_battery": True}, {"is_on_battery": False}),
            ({"gpu_celsius": 85.0}, {"gpu_celsius": 60.0}),
        ):
            scene.finds(**bad)
            await trio.sleep(OBEYED_WITHIN_S)
            assert scene.trainer.is_paused, bad
            scene.finds(**fine)
            await trio.sleep(COOL_FOR_S + OBEYED_WITHIN_S)
            assert not scene.trainer.is_paused, fine

    await _tell(story, ControlSettings(max_gpu_celsius=80))


async def test_the_hour_strikes_and_training_begins_and_ends_with_it(autojump_clock: Clock) -> None:
    async def story(scene: _Scene) -> None:
        assert scene.trainer.is_paused
        await trio.sleep_until(600 + OBEYED_WITHIN_S)
        assert not scene.trainer.is_paused
        await trio.sleep_until(1200 + OBEYED_WITHIN_S)
        assert scene.trainer.is_paused

    await _tell(story, ControlSettings(weekly_hours=parse_hours("fri 12:10-12:20")))


async def test_a_slow_training_process_ends_at_the_last_word_and_the_status_does_not_wait_for_it(
    autojump_clock: Clock,
) -> None:
    async def story(scene: _Scene) -> None:
        scene.finds(pause=OwnerPause())
        await trio.sleep(OBEYED_WITHIN_S)
        assert not scene.trainer.is_paused
        assert status_of(scene.sources).state == "paused"
        scene.finds(pause=None)
        await trio.sleep(OBEYED_WITHIN_S)
        assert status_of(scene.sources).state == "training"
        await trio.sleep(60)
        assert not scene.trainer.is_paused

    await _tell(story, trainer=_Trainer(obeys_after_s=10.0))


async def test_a_duty_comes_on_top_of_the_slowdown_that_was_set_once(autojump_clock: Clock) -> None:
    async def story(scene: _Scene) -> None:
        assert scene.trainer.slowdown == 12.0

    await _tell(story, ControlSettings(duty_percent=25), slowdown=3.0)


async def test_a_quota_that_is_used_up_reaches_network_and_training_within_five_seconds(autojump_clock: Clock) -> None:
    async def story(scene: _Scene) -> None:
        network = _Network()
        scene.controls.cap(network)
        assert network.caps == (1e6, None)
        scene.finds(today_bytes=10)
        await trio.sleep(OBEYED_WITHIN_S)
        assert network.caps == (STOPPED_BYTES_PER_S, STOPPED_BYTES_PER_S)
        assert (scene.trainer.is_paused, scene.trainer.is_held) == (True, True)
        scene.finds(pause=OwnerPause(), today_bytes=0)
        await trio.sleep(OBEYED_WITHIN_S)
        assert network.caps == (1e6, None)
        assert (scene.trainer.is_paused, scene.trainer.is_held) == (True, False)

    await _tell(story, ControlSettings(daily_quota_bytes=10, upload_bytes_per_s=1e6))


async def test_bytes_stand_still_within_five_seconds_of_a_quota_used_up_and_flow_within_five_of_its_end(
    autojump_clock: Clock,
) -> None:
    async def story(scene: _Scene) -> None:
        network = _PacedNetwork()
        scene.controls.cap(network)
        async with trio.open_nursery() as nursery:
            for limiter in network.limiters:
                nursery.start_soon(network.stream, limiter)
            for _ in range(3):
                scene.finds(today_bytes=0)
                await trio.sleep(NETWORK_WITHIN_S)
                assert min(await network.moved_in(10.0)) >= 0.9 * 10.0 * 1e6
                scene.finds(today_bytes=10)
                await trio.sleep(NETWORK_WITHIN_S)
                assert max(await network.moved_in(3600.0)) <= FRAME_BYTES
            nursery.cancel_scope.cancel()

    settings = ControlSettings(daily_quota_bytes=10, upload_bytes_per_s=1e6, download_bytes_per_s=1e6)
    await _tell(story, settings)


async def test_above_its_memory_it_is_held_back_and_the_status_says_what_was_found_and_allowed(
    autojump_clock: Clock,
) -> None:
    async def story(scene: _Scene) -> None:
        scene.finds(memory_bytes=2_500_000_000)
        await trio.sleep(OBEYED_WITHIN_S)
        assert (scene.trainer.is_paused, scene.trainer.is_held) == (True, False)
        status = status_of(scene.sources)
        assert status.state == "paused"
        assert status.reason.endswith("(they hold 2.5 GB)")
        scene.finds(memory_bytes=1_700_000_000)
        await trio.sleep(ROOMY_FOR_S - OBEYED_WITHIN_S)
        assert scene.trainer.is_paused
        await trio.sleep(3 * OBEYED_WITHIN_S)
        assert not scene.trainer.is_paused

    await _tell(story, ControlSettings(max_memory_bytes=2_000_000_000))


async def test_before_training_the_board_tells_only_what_will_hold_it_back(autojump_clock: Clock) -> None:
    async def story(scene: _Scene) -> None:
        scene.board.say("joining", "fetching data")
        scene.finds(pause=OwnerPause())
        await trio.sleep(OBEYED_WITHIN_S)
        status = status_of(scene.sources)
        assert (status.state, status.reason) == ("joining", "fetching data")
        assert status.allowed_reason.startswith("paused until")

    await _tell(story)


def test_the_settings_of_the_peer_are_the_settings_of_its_controls() -> None:
    config = PeerConfig(
        weekly_hours="mon 00:00-01:00",
        time_zone="UTC",
        train_on_battery=True,
        max_gpu_celsius=80,
        max_cpu_celsius=90,
        only_when_idle=True,
        idle_after_s=60,
        duty_percent=50,
        upload_bytes_per_s=7,
        download_bytes_per_s=8,
        daily_quota_gb=1.5,
        max_memory_gb=2.5,
    )
    controls = open_controls(config, StatusBoard(PeerId("peer"), VirtualClock(), 0.0), VirtualClock())
    assert controls._settings == ControlSettings(
        parse_hours("mon 00:00-01:00"), True, 80, 90, 60, 50, 7, 8, 1_500_000_000, 2_500_000_000
    )


class _Islands(_Trainer):
    def __init__(self) -> None:
        super().__init__()
        self.paused: dict[int, str] = {}

    async def set_paused(self, world: int, is_paused: bool, because: str = "") -> None:
        self.paused = (
            {**self.paused, world: because} if is_paused else {k: v for k, v in self.paused.items() if k != world}
        )


async def test_the_island_of_a_hot_card_is_paused_alone_until_the_card_has_cooled(autojump_clock: Clock) -> None:
    sensors, islands = _Sensors(), _Islands()
    board = StatusBoard(PeerId("p"), VirtualClock(), 0.0)
    controls = Controls(ControlSettings(max_gpu_celsius=80), sensors, board)
    cool, hot = CardHeat("card 0", 0, 60.0), CardHeat("card 3", 1, 60.0)
    sensors.readings = replace(sensors.readings, cards=(cool, hot))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(controls.keep)
        nursery.start_soon(controls.order, islands)
        await trio.sleep(2 * OBEYED_WITHIN_S)
        assert islands.paused == {}
        sensors.readings = replace(sensors.readings, cards=(cool, replace(hot, celsius=85.0)))
        await trio.sleep(OBEYED_WITHIN_S)
        assert list(islands.paused) == [1]
        assert "card 3" in islands.paused[1]
        assert not islands.is_paused
        sensors.readings = replace(sensors.readings, cards=(cool, replace(hot, celsius=70.0)))
        await trio.sleep(COOL_FOR_S + OBEYED_WITHIN_S)
        assert islands.paused == {}
        nursery.cancel_scope.cancel()
