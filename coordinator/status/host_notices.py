"""The conditions of a host's notices, which its owner wants to know while away, from snapshots of the run. No clock in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from averaging.notices.conditions import Condition
from coordinator.audits.loss_gate_core import Rise, measures_of, rise_in
from coordinator.presence.presence import live_peers
from coordinator.progress.heldout_core import WHOLE
from coordinator.progress.run_core import Phase
from coordinator.progress.run_view import RunPicture
from protocol.identity.names import peer_name
from protocol.rounds.lineage.quorum import is_quorum
from protocol.tables import duration, several

NO_ROUND_AFTER_S: Final = 1800.0
"""A run without a round for so long is told, unless its rounds may take longer."""

_INTERVALS: Final = 3.0
"""A round may miss its interval, and the next one, too."""

_HOLDS_S: Final = 120.0
"""Peers come back after a break of their line, and are all unheard when the host has just started."""


class HostConditions:
    """The conditions of one host.

    Args:
        longest_interval_s: of a round, as in run.toml.
    """

    def __init__(self, longest_interval_s: float) -> None:
        self.no_round_after_s = max(NO_ROUND_AFTER_S, _INTERVALS * longest_interval_s)
        self._first: RunPicture | None = None
        self._round: tuple[object, float] | None = None

    def of(self, picture: RunPicture, now_s: float, trouble: str = "") -> Sequence[Condition]:
        """All conditions that hold. `now_s`: monotonic, as in the picture; `trouble`: a full disk in one sentence, empty for none."""
        first = self._first = self._first or picture
        place = picture.state.phase, picture.state.index
        if self._round is None or self._round[0] != place:
            self._round = place, now_s
        found = [Condition("disk_full", trouble)] if trouble else []
        if picture.num_bans > first.num_bans:
            banned = f"{several(picture.num_bans - first.num_bans, 'peer')} banned since the host started"
            found.append(Condition("peer_banned", banned, mark=picture.num_bans))
        if picture.state.phase is Phase.FINISHED and first.state.phase is not Phase.FINISHED:
            found.append(Condition("run_complete", f"the run is complete, with {picture.state.total_tokens:,} tokens"))
        if picture.state.phase is Phase.TRAINING:
            found += self._of_training(picture, now_s, now_s - self._round[1])
        return found

    def _of_training(self, picture: RunPicture, now_s: float, without_s: float) -> list[Condition]:
        live = set(live_peers(picture.peers, now_s))
        members = picture.rounds[-1].row.members if picture.rounds else ()
        found = []
        if without_s >= self.no_round_after_s:
            text = f"no round for {duration(self.no_round_after_s)}, with {several(len(live), 'peer')} here"
            found.append(Condition("no_round", text))
        if members and not is_quorum(bytes.fromhex(picture.run_id_hex), members, live):
            here = sum(peer in live for peer in members)
            text = f"{here} of the {len(members)} peers of the last round are heard, too few to commit another"
            found.append(Condition("quorum_lost", text, for_s=_HOLDS_S))
        rise = rise_in(measures_of(picture.loss_points, WHOLE))
        if rise is not None:
            found.append(Condition("loss_rose", f"{rise.words}{_who_was_in(picture, rise)}", mark=rise.good.index))
        if picture.num_forks:
            text = f"the run goes on in {picture.num_forks + 1} branches until they meet: some peers cannot reach the others"
            found.append(Condition("branches", text, for_s=_HOLDS_S))
        return found


def _who_was_in(picture: RunPicture, rise: Rise) -> str:
    """The members that contributed to each of the worse rounds, as far as these are shown."""
    bad = {each.index for each in rise.bad}
    members = [set(timed.row.members) for timed in picture.rounds if timed.row.index in bad]
    common = sorted(set.intersection(*members)) if members else []
    if not common:
        return ""
    names = ", ".join(map(peer_name, common[:3])) + (f" and {len(common) - 3} more" if len(common) > 3 else "")
    return f"; in all of these rounds were {names}"
