"""A peer gives others what it has of its units' states, also while it fetches them itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from averaging.network.seams.interfaces import Network, Stream
from averaging.rounds.lineage.unit_chain import UnitChain, sealed_milestones
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, TransferService, read_request
from protocol.errors import RefusedError
from protocol.ids import PeerId, short


def transfer_service(chain: UnitChain) -> TransferService:
    """Serves what is here of a unit: results, commits, whole states, and the parts of a state that is on its way."""
    tools = chain.tools
    log_, generations = tools.log, tools.generations
    after, milestones = lambda known: chain.line.after(known), lambda: sealed_milestones(chain)
    return TransferService(tools.unit, log_, generations, tools.grid, after, milestones, generations.incoming)


def serve_meanwhile(
    network: Network, chains: Sequence[UnitChain], is_member: Callable[[PeerId], Awaitable[bool]]
) -> None:
    """Serve members before our rounds begin, so that newcomers who fetch the same state get it from each other. The rounds take the
    channel over.
    """
    services = {chain.tools.unit: transfer_service(chain) for chain in chains}

    async def serve(peer: PeerId, stream: Stream) -> None:
        if not await is_member(peer):
            raise RefusedError(f"{short(peer)} asked for a state", "a member of the run")
        request = await read_request(stream)
        service = services.get(request.unit)
        if service is not None:
            await service.serve(peer, request, stream)

    network.serve_streams(FETCH_CHANNEL, serve)
