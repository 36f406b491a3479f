"""The speeds of layouts that trials found on this machine, kept in the state folder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog
from pydantic import BaseModel, ConfigDict, NonNegativeFloat, ValidationError

from averaging.release import installed_release
from peer.training.plan.card_memory_core import CardLoad
from peer.training.plan.layout import Layout
from peer.training.plan.owned_cards_core import OwnedCard
from protocol.run.training_sections import InnerSection

log = structlog.get_logger()

SPEEDS_FILE: Final = "layout_speeds.json"
MOST_KEPT: Final = 64


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid")

    speeds: dict[str, NonNegativeFloat] = {}


def speed_key(layout: Layout, cards: Sequence[OwnedCard], load: CardLoad, inner: InnerSection) -> str:
    """Tells measurements apart: the layout, the cards, the numbers of the model and its steps, and this release."""
    facts = {
        "layout": layout.model_dump(mode="json", exclude={"reason"}),
        "cards": [(card.number, card.card.name, card.card.memory_bytes, card.uuid) for card in cards],
        "model": load.model.model_dump(mode="json"),
        "values": load.num_values,
        "inner": inner.model_dump(mode="json"),
        "release": installed_release(),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


class LayoutSpeeds:
    """The speeds in a state folder, in tokens/s by key. A damaged file is as none: it is measured again."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / SPEEDS_FILE

    def read(self, key: str) -> float | None:
        """The speed kept for this key; None if there is none. Blocks."""
        return self._all().get(key)

    def keep(self, key: str, tokens_per_s: float) -> None:
        """Keep it, besides the newest others. A disk that refuses only costs another measurement. Blocks."""
        speeds = self._all()
        speeds.pop(key, None)
        speeds[key] = tokens_per_s
        newest = dict(list(speeds.items())[-MOST_KEPT:])
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_text(_Kept(speeds=newest).model_dump_json() + "\n", encoding="utf8")
            os.replace(temporary, self._path)
        except OSError as error:
            log.warning("layout_speed_not_kept", reason=str(error))

    def _all(self) -> dict[str, float]:
        try:
            return _Kept.model_validate_json(self._path.read_bytes()).speeds
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError) as error:
            log.warning("layout_speeds_unreadable", path=str(self._path), reason=str(error).splitlines()[0])
            return {}
