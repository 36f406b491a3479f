"""The experts of this peer across restarts: what its owner and its disk demand, and the choice once the run has started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from averaging.data.shards import DatasetManifest, HashedFile
from averaging.network.seams.interfaces import Offload
from peer.holdings.held_experts_core import Known, choose, founded, of_founders, room_for
from peer.holdings.verified_holders_core import Believed
from peer.membership.saved_membership import write_durably
from peer.settings.config import PeerConfig, whole_bytes
from protocol.errors import StorageError
from protocol.host.expert_choice import Holding, check_experts, parse_experts
from protocol.ids import PeerId
from protocol.rounds.messages.start import StartRecord
from protocol.run.manifest import RunConfig

log = structlog.get_logger()

FILE_NAME: Final = "experts"
"""File in the folder of a run with the held experts, as JSON."""


class OwnExperts:
    """The experts of a run that this peer holds. `held` is empty until it has decided, and in a run without experts.

    Raises:
        ConfigError: the owner named experts that the run does not have, or too many.
    """

    def __init__(self, own: PeerConfig, config: RunConfig, folder: Path, offload: Offload) -> None:
        mixture, section = config.mixture, config.experts
        self.num_parts = mixture.num_experts if mixture is not None else 0
        self.room = room_for(config, whole_bytes(own.max_memory_gb), whole_bytes(own.max_gpu_memory_gb))
        self._folder = folder
        self._offload = offload
        self._pinned = parse_experts(own.expert) if own.expert else ()
        check_experts(self._pinned, self.num_parts, section.holdings if section is not None else 0)
        self._kept = _load(folder / FILE_NAME, self.num_parts) if self.num_parts else ()
        self.held = ()

    held: tuple[int, ...]

    @property
    def wanted(self) -> tuple[int, ...]:
        """Experts that are fixed regardless of other peers: named by the owner, or held earlier. Empty if the choice is open."""
        return self.held or self._pinned or self._kept

    def files(self, dataset: DatasetManifest, held: Sequence[int]) -> Sequence[HashedFile]:
        """Files of the data set to fetch for these experts; all files in a run without experts."""
        return dataset.files_of(held)

    async def settle(self, start: StartRecord, me: PeerId, seen: Believed) -> tuple[int, ...]:
        """Decide once the run has started, by what the other reachable members hold.

        Raises:
            StorageError: the choice cannot be saved.
        """
        if not self.num_parts:
            return ()
        began = of_founders(start, self.num_parts)
        held = began if seen.is_empty else seen.held  # without a directory, the founders of the run count
        others = {peer: Holding(experts or began.get(peer, ())) for peer, experts in held.items() if peer != me}
        claims = seen.num_claims(self.num_parts)
        own = founded(start, me, self.num_parts)
        choice = choose(Known(self.num_parts, me, self.room, self._pinned, self._kept, own, others, claims))
        await self._offload.run(partial(_keep, self._folder / FILE_NAME, choice.experts))
        self.held = choice.experts
        log.info("experts_chosen", experts=choice.experts, reason=choice.reason)
        return self.held


def _keep(path: Path, experts: tuple[int, ...]) -> None:
    try:
        write_durably(path, json.dumps(experts).encode("ascii"))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", "a writable folder with space") from error


def _load(path: Path, num_experts: int) -> tuple[int, ...]:
    """Load the saved choice. Empty if the file is missing or unreadable: another choice only costs a download."""
    try:
        experts = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return ()
    is_fine = isinstance(experts, list) and all(type(one) is int and 0 <= one < num_experts for one in experts)
    return tuple(sorted(set(experts))) if is_fine else ()
