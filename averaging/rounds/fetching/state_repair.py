"""Replaces a state that differs from the one that the run attests: from our own disk, else from other peers (R21).

Meanwhile this peer acks, but contributes nothing and serves no state.

Rules: R21 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network
from averaging.rounds.fetching.download import download_state, download_tools
from averaging.rounds.lineage.earlier_states import recomputed
from averaging.rounds.lineage.round_reports import Publish, StateDiffers, StateHealed
from averaging.rounds.lineage.trainer_updates import TrainerUpdater
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.state.state import UnitState
from protocol.errors import PotluckError
from protocol.ids import PeerId
from protocol.rounds.lineage.chain import attested_roots

log = structlog.get_logger()

HEAL_RETRY_S: Final = 5.0
"""Pause between two tries, when neither our disk nor another peer has the attested state."""


class Healer:
    """Watches over one unit's state. `peers()` are the peers that may be asked for theirs."""

    def __init__(
        self,
        chain: UnitChain,
        network: Network,
        adopter: TrainerUpdater,
        publish: Publish,
        peers: Callable[[], tuple[PeerId, ...]],
    ) -> None:
        self._chain = chain
        self._network = network
        self._adopter = adopter
        self._publish = publish
        self._peers = peers

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._chain.became_unsound.wait()
            reason = (
                f"our state at commit {self._chain.head.index} is not the one that the run attests: making it again"
            )
            log.warning("state_differs", reason=reason)
            self._publish(StateDiffers(reason))
            while not await self._try():
                await trio.sleep(HEAL_RETRY_S)
            log.info("state_healed", index=self._chain.head.index)
            self._publish(StateHealed(f"healed at commit {self._chain.head.index}"))

    async def _try(self) -> bool:
        """Try our own disk, then other peers."""
        for source in (partial(recomputed, self._chain), self._fetched):
            try:
                state = await source()
                if state is None:
                    continue
                shift_N = await self._chain.replace_state(state)
            except PotluckError as error:
                log.info("not_healed", reason=error.one_line())
                continue
            await self._adopter.correct(shift_N, self._chain.state)
            return True
        return False

    async def _fetched(self) -> UnitState | None:
        """The newest attested state that other peers offer."""
        tools = download_tools(self._network, self._chain.tools)
        return await download_state(tools, self._peers(), attested_roots(self._chain.links))
