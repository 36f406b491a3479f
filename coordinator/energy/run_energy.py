"""Adds up the energy that peers report. A hint from their own meters, which nobody checks; kept in memory by this process alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.grids import JOULES_PER_KWH, carbon_kg
from protocol.host.reports import EnergySpent
from protocol.ids import PeerId

MOST_PEERS: Final = 4096
"""Peers whose energy is kept in a run of usual size. Those that come later are not counted."""


@dataclass(frozen=True, slots=True)
class EnergySums:
    """Energy of all peers together since this process of the host began to hear them.

    Attributes:
        num_peers: that have told of a meter.
        carbon_kg: of the peers that tell their grid or the run's; None if that is none of them.
        carbon_share: the part of the energy whose grid is known, 0 to 1.
        tokens: that these peers trained with it.
    """

    num_peers: int = 0
    kwh: float = 0.0
    tokens: int = 0
    carbon_kg: float | None = None
    carbon_share: float = 0.0

    @property
    def joules_per_token(self) -> float | None:
        """Energy over tokens; None before there is a token."""
        return self.kwh * JOULES_PER_KWH / self.tokens if self.tokens else None

    def json(self) -> dict[str, object]:
        """The part of /api/status; nothing of it while no peer has a meter."""
        if not self.num_peers:
            return {}
        return {
            "num_peers": self.num_peers,
            "kwh": self.kwh,
            "joules_per_token": self.joules_per_token,
            "carbon_kg": self.carbon_kg,
            "carbon_share": self.carbon_share,
        }


NO_ENERGY: Final = EnergySums()


@dataclass(frozen=True, slots=True)
class _OfPeer:
    """A peer's newest counts, and the sums of its earlier processes."""

    newest: EnergySpent
    joules_before: float = 0.0
    tokens_before: int = 0

    def after(self, spent: EnergySpent) -> _OfPeer:
        """With a new report. Counts begin at 0 again when the peer's process starts again."""
        is_new = spent.joules < self.newest.joules
        joules = self.joules_before + (self.newest.joules if is_new else 0.0)
        return _OfPeer(spent, joules, self.tokens_before + (self.newest.tokens if is_new else 0))

    @property
    def joules(self) -> float:
        """Of all its processes."""
        return self.joules_before + self.newest.joules

    @property
    def tokens(self) -> int:
        """Of all its processes."""
        return self.tokens_before + self.newest.tokens


class RunEnergy:
    """The energy of a run's peers.

    Args:
        most_peers: whose energy is kept. Those that come later are not counted.
    """

    def __init__(self, most_peers: int = MOST_PEERS) -> None:
        self._most_peers = most_peers
        self._peers: dict[PeerId, _OfPeer] = {}

    def heard(self, peer: PeerId, spent: EnergySpent | None) -> None:
        """Note a peer's report. A peer without a meter counts nothing."""
        if spent is None:
            return
        before = self._peers.get(peer)
        if before is not None:
            self._peers[peer] = before.after(spent)
        elif len(self._peers) < self._most_peers:
            self._peers[peer] = _OfPeer(spent)

    def sums(self) -> EnergySums:
        """All peers together."""
        joules = sum(each.joules for each in self._peers.values())
        told = ((each.joules, each.newest.g_per_kwh) for each in self._peers.values())
        known = [(joules, grams) for joules, grams in told if grams is not None]
        known_joules = sum(each for each, _ in known)
        return EnergySums(
            num_peers=len(self._peers),
            kwh=joules / JOULES_PER_KWH,
            tokens=sum(each.tokens for each in self._peers.values()),
            carbon_kg=sum(carbon_kg(each / JOULES_PER_KWH, grams) for each, grams in known) if known else None,
            carbon_share=known_joules / joules if joules else float(bool(known)),
        )
