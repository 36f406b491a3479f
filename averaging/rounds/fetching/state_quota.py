"""How much of a unit's state a stranger may fetch from one donor: enough for a start and a start again, in some hours."""

from __future__ import annotations

from typing import Final

from averaging.network.pacing.byte_quota import ByteQuota
from averaging.rounds.lineage.round_context import RoundContext
from averaging.state.state import STATE_BYTES_PER_VALUE
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId
from protocol.rounds.messages.requests import FetchRequest, FetchState
from protocol.tensors.tensor_schema import ChunkGrid

STATES: Final = 2
"""Whole states that a stranger may have from one donor in a window."""

WINDOW_S: Final = 6 * 3600.0


class StateQuota:
    """The allowances of strangers at this donor, for one unit."""

    def __init__(self, grid: ChunkGrid, tools: RoundContext) -> None:
        self._grid = grid
        self._tools = tools
        most_bytes = STATES * STATE_BYTES_PER_VALUE * grid.num_elements
        self._quota = ByteQuota(most_bytes, WINDOW_S, self._is_stranger, tools.clock.monotonic_s)

    def _is_stranger(self, peer: PeerId) -> bool:
        return self._tools.host_word.standings().get(peer) is PeerStanding.STRANGER

    def takes(self, peer: PeerId, request: FetchRequest) -> bool:
        """Whether a peer may have an answer to this request; requests for other things than chunks of a state are free."""
        if not isinstance(request, FetchState) or not request.stop_chunk:
            return True
        num_chunks = max(0, min(request.stop_chunk, self._grid.num_chunks) - request.first_chunk)
        return self._quota.takes(peer, STATE_BYTES_PER_VALUE * num_chunks * self._grid.chunk_elements)
