"""Traffic of the current day, kept across restarts, for the owner's daily quota."""

from __future__ import annotations

import os
from datetime import date
from pathlib import Path
from typing import Annotated, Final

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

log = structlog.get_logger()

TRAFFIC_FILE: Final = "traffic_today.json"
SAVE_EVERY_BYTES: Final = 10_000_000
"""A crash may leave this much uncounted: a hundredth of the smallest quota that allows any training."""

MAX_FILE_BYTES: Final = 1000


class TrafficDay(BaseModel):
    """Payload bytes of one day on the owner's calendar, both ways, both lanes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    day: date
    num_bytes: Annotated[int, Field(ge=0)] = 0


class DailyTraffic:
    """Counts the day's traffic. Saves it in the state folder from time to time, whole or not at all. Blocks for milliseconds."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / TRAFFIC_FILE
        self._today = _read(self._path)
        self._saved = self._today
        self._total_bytes = 0

    def count(self, total_bytes: int, today: date) -> int:
        """Today's bytes, given the `total_bytes` that this process has moved since its start. Bytes since the previous call count
        for the day of this call.
        """
        new_bytes = max(0, total_bytes - self._total_bytes)
        self._total_bytes = total_bytes
        if self._today is None or self._today.day != today:
            self._today = TrafficDay(day=today)
        self._today = self._today.model_copy(update={"num_bytes": self._today.num_bytes + new_bytes})
        if self._is_worth_saving(self._today):
            self._save(self._today)
        return self._today.num_bytes

    def _is_worth_saving(self, today: TrafficDay) -> bool:
        saved = self._saved
        return saved is None or saved.day != today.day or today.num_bytes - saved.num_bytes >= SAVE_EVERY_BYTES

    def _save(self, today: TrafficDay) -> None:
        temporary = self._path.with_suffix(".tmp")
        self._saved = today  # on a full disk, retry after the same number of bytes, not at every call
        try:
            temporary.write_text(today.model_dump_json() + "\n", encoding="utf8")
            os.replace(temporary, self._path)
        except OSError as error:
            log.warning("traffic_not_saved", path=str(self._path), reason=str(error))


def _read(path: Path) -> TrafficDay | None:
    """None if there is no valid file; the day's count then starts now."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES)
        return TrafficDay.model_validate_json(data)
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        log.warning("traffic_file_ignored", path=str(path), reason="it cannot be read; today is counted from now on")
        return None
