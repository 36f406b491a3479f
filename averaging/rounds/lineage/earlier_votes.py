"""What our log knows of votes on bases on which we may come to stand: also on the one on which we stood before (rule 19)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from averaging.state.unit_log import LoggedBase, LoggedRounds
from protocol.ids import CommitId
from protocol.rounds.messages.messages import LAST_ATTEMPT
from protocol.rounds.state import OpenRound


class EarlierVotes:
    """Votes of the log as it was read last, on all bases but those that our head has behind it.

    A start that lost the bytes of newer commits stands further back than we voted. It comes to those bases again by applying what
    follows, and who forgot there what it acked could ack another record beside it: two commits of a quorum on one base.
    """

    def __init__(self) -> None:
        self._bases: Mapping[CommitId, LoggedBase] = {}

    def read(self, logged: LoggedRounds, behind: Collection[CommitId]) -> None:
        """The log was read; our head has these commits behind it."""
        self._bases = {base: known for base, known in logged.bases.items() if base not in behind}

    def on(self, base: CommitId) -> OpenRound:
        """The round on a base that becomes our head, as far as we voted on it before the log was read."""
        known = self._bases.get(base)
        if known is None:
            return OpenRound()
        promised = known.promised
        # it may have helped to decide this base: what else it would ack could be decided beside that
        has_left = known.has_forgotten
        if promised is not None and promised.attempt == LAST_ATTEMPT:
            promised, has_left = None, True
        return OpenRound(
            promised=promised,
            acked=known.acked,
            acked_lone=known.acked_lone,
            highest_attempt=promised.attempt if promised is not None else 0,
            has_left=has_left,
        )
