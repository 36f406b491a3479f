"""Asks members for the proofs of false sums that they speak of, checks each, and bans the reducer that it convicts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import structlog

from coordinator.ledger.accused_reducers import AccusedReducers
from protocol.errors import PotluckError, RemoteProtocolError
from protocol.identity.names import peer_name
from protocol.ids import PeerId, UnitName
from protocol.tensors.tensor_schema import ChunkGrid

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Network, Offload
    from averaging.rounds.audit.sum_check import SumCheck
    from coordinator.ledger.convictions import Convictions
    from protocol.run.manifest import RunManifest

_log = structlog.get_logger()

Reach = Callable[[Sequence[PeerId]], Awaitable[None]]
"""Makes the addresses of these peers known to the network."""


def sum_checks(manifest: RunManifest, convictions: Convictions) -> dict[UnitName, SumCheck]:
    """How sums of each unit of a run are checked."""
    from averaging.codecs import codec_by_name  # imports torch
    from averaging.rounds.audit.sum_check import SumCheck
    from averaging.rounds.exchange.chunk_means import ChunkMeans

    config = manifest.config
    codec, results = codec_by_name(config.round.codec), codec_by_name(config.result_codec)
    grids = {
        unit: ChunkGrid(each.num_elements, config.chunk_elements) for unit, each in manifest.unit_schemas().items()
    }
    return {
        unit: SumCheck(unit, codec, ChunkMeans(results, grid, config.round.sums), convictions.check)
        for unit, grid in grids.items()
    }


async def judge_sums(
    manifest: RunManifest, convictions: Convictions, network: Network, offload: Offload, reach: Reach
) -> None:
    """Judge the accusations of a run as they come, until cancelled."""
    await judge(sum_checks(manifest, convictions), convictions, network, offload, reach)


class Bans(Protocol):
    """The queue of accusations, and the way to ban a reducer."""

    sums: AccusedReducers

    async def ban_reducer(self, reducer: PeerId, words: str) -> None:
        """As `Convictions.ban_reducer`."""
        ...


async def judge(
    checks: Mapping[UnitName, SumCheck], convictions: Bans, network: Network, offload: Offload, reach: Reach
) -> None:
    """One after another. An accusation whose proof cannot be had is dropped; others that have it accuse, too."""
    from averaging.rounds.audit.proof_fetch import fetch_proof  # imports torch

    while True:
        source, notice = await convictions.sums.next()
        check = checks.get(notice.unit)
        if check is None:
            continue
        try:
            await reach([source])
            proof = await fetch_proof(network, offload, source, notice, check)
            await convictions.ban_reducer(notice.reducer, proof.words)
        except RemoteProtocolError as error:
            convictions.sums.note_failed(source, notice)
            _log.info("accusation_without_proof", by=peer_name(source), reason=error.one_line())
        except PotluckError as error:
            _log.info("proof_not_fetched", by=peer_name(source), reason=error.one_line())
