"""Asks a peer for the proof of a false sum that it speaks of, and checks it.

Rules: R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from averaging.network.seams.interfaces import Network, Offload
from averaging.rounds.audit.sum_check import SumCheck
from averaging.rounds.traffic.transfer import ANSWER_WITHIN_S, ask_all
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.rounds.audit.sum_proof import SumProof, decode_proof, hash_of_proof, most_proof_bytes, notice_of
from protocol.rounds.messages.messages import FalseSum
from protocol.rounds.messages.requests import FetchProof

LOOK_COST_S: Final = 0.001
"""Virtual time that computing a chunk again takes."""


async def fetch_proof(
    network: Network, offload: Offload, source: PeerId, notice: FalseSum, check: SumCheck
) -> SumProof:
    """The proof that a notice names, from the peer that sent it; it convicts the reducer.

    Raises:
        TransportError: the peer is gone, silent or too slow.
        RemoteProtocolError: it has no such proof, or one that convicts nobody.
    """
    request, most_bytes = FetchProof(notice.unit, notice.proof_hash), most_proof_bytes(check.chunk_bytes)
    data = b"".join(await ask_all(network, source, request, most_bytes, within_s=ANSWER_WITHIN_S))
    if hash_of_proof(data) != notice.proof_hash:
        raise RemoteProtocolError(f"{len(data)} bytes with another hash", "the proof")
    proof = decode_proof(data, check.chunk_bytes)
    if notice_of(proof, data) != notice:
        raise RemoteProtocolError("a proof of something else", "one of what was said")
    problem = await offload.run(partial(check.why_not, proof), cost_s=LOOK_COST_S)
    if problem:
        raise RemoteProtocolError(problem, "a proof of a false sum")
    return proof
