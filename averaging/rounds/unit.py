"""A unit's outer state as it moves: the head, the chain behind it, and what applying a commit does to memory and disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
import torch

from averaging.codecs import Codec
from averaging.generations import Generations
from averaging.network.seams import Offload
from averaging.outer_step import apply_outer_step
from averaging.rounds.contribution import result_root, split_chunks
from averaging.state import UnitState, state_root
from averaging.unit_log import LoggedContribution, UnitLog
from protocol.errors import LocalProtocolError, RemoteProtocolError, StorageError
from protocol.identity import Verifier
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.rounds.chain import ChainLink, genesis_link, verify_certificate
from protocol.rounds.messages import AckedRecord, Certificate, CommitRecord, SliceRecord
from protocol.rounds.plan import covered_chunks
from protocol.rounds.state import Contribution, OpenRound
from protocol.tensor_schema import ChunkGrid
from protocol.wire import decode_certificate, decode_record, encode_certificate

log = structlog.get_logger()

SNAPSHOT_BYTES_PER_VALUE = 8
"""Anchor and momentum, float32 each."""

KEPT_UPDATE_SNAPSHOTS = 4
"""rounds.md C4 asks for one snapshot's weight of updates; four give a slow joiner time to finish its download."""

APPLY_COST_S = 0.005
"""What applying a commit costs in virtual time."""


@dataclass(frozen=True)
class UnitTools:
    """What a unit's state works with."""

    run_id: RunId
    unit: UnitName
    verifier: Verifier
    codec: Codec
    grid: ChunkGrid
    offload: Offload
    log: UnitLog
    generations: Generations


@dataclass(frozen=True)
class AppliedCommit:
    """What one commit did here: the shift of the anchor and the new root."""

    state: UnitState
    root: Root
    previous_anchor_N: torch.Tensor


class UnitChain:
    """The verified chain and the outer state at its head."""

    def __init__(self, tools: UnitTools, start_record: bytes, genesis: UnitState) -> None:
        self.tools = tools
        self.genesis = genesis
        self.links: list[ChainLink] = [genesis_link(start_record, tools.unit)]
        self.certificates: list[bytes] = []
        self.state = genesis
        self.root = Root(bytes(32))
        self._offered: dict[CommitId, LoggedContribution] = {}

    @property
    def head(self) -> ChainLink:
        """The newest applied link."""
        return self.links[-1]

    def certificates_after(self, commit: CommitId) -> Sequence[bytes]:
        """Certificates after a commit of this chain, oldest first; empty when it is not on it or is the head."""
        for position, link in enumerate(self.links):
            if link.commit == commit:
                return tuple(self.certificates[position:])
        return ()

    def certificate_on(self, base: CommitId) -> bytes | None:
        """The certificate of the commit whose parent is `base`."""
        after = self.certificates_after(base)
        return after[0] if after else None

    async def restore(self) -> OpenRound:
        """Read the disk: the newest good generation, then the log on top; returns what is known of the open round.

        Raises:
            StorageError: the log does not continue the start record: the folder belongs to another run.
        """
        logged = await self.tools.log.load()
        for base, raw in logged.certificates:
            if base == self.head.commit:
                self._extend(decode_certificate(raw), raw)
            elif self.certificate_on(base) is None:
                raise StorageError(
                    "a log with a gap or of another run", "one chain from the run's start", "use another folder"
                )
            # else it was applied once more, after a start that had lost its bytes
        self._offered = {base: known.contribution for base, known in logged.bases.items() if known.contribution}
        await self._restore_state()
        known = logged.bases.get(self.head.commit)
        if known is None:
            return OpenRound()
        contribution = None
        if known.contribution is not None:
            contribution = Contribution(known.contribution.root, known.contribution.tokens, is_at_hand=False)
        attempt = known.promised.attempt if known.promised is not None else 0
        acked = known.acked if known.acked is not None and await self._holds_bytes_of(known.acked) else None
        return OpenRound(promised=known.promised, acked=acked, contribution=contribution, highest_attempt=attempt)

    async def _holds_bytes_of(self, acked: AckedRecord) -> bool:
        """An ack whose bytes the disk has lost is void (rule 19); its ballot stays promised."""
        record = decode_record(acked.record)
        return await self.tools.log.holds_results(record.parent, [part.result_hash for part in record.slices])

    async def _restore_state(self) -> None:
        newest = await self.tools.generations.load_newest()
        commits = [link.commit for link in self.links]
        state = self.genesis
        if newest is not None:
            for problem in newest[2]:
                log.warning("generation_damaged", reason=problem)
            if newest[0].head in commits:
                state = newest[0]
        position = commits.index(state.head)
        for link in self.links[position + 1 :]:
            data = await self._read_good_results(link)
            if data is None:
                break
            state = await self._advance(state, link, data)
        self.state = state
        del self.links[commits.index(state.head) + 1 :]
        del self.certificates[len(self.links) - 1 :]
        self.root = await self._root(state)

    def data_position(self, me: PeerId) -> int:
        """The local step to go on from: after the last one that a commit of this chain counted. What came later died untold, so its
        data is read again, and no step is counted twice.
        """
        position = 0
        for link in self.links:
            entry = link.record.contributor(me) if link.record is not None else None
            if entry is None or link.record is None:
                continue
            offered = self._offered.get(link.record.parent)
            if offered is not None and offered.root == entry.root:
                position = max(position, offered.next_step)
        return position

    async def log_contribution(self, base: CommitId, contribution: LoggedContribution) -> None:
        """Write our one contribution on a base to disk, before its first byte leaves (rule 8)."""
        await self.tools.log.log_contribution(base, contribution)
        self._offered[base] = contribution

    async def start_from(self, state: UnitState, certificates: Sequence[Certificate]) -> None:
        """Take over a downloaded state: the chain up to its commit is verified, logged and becomes ours.

        Raises:
            RemoteProtocolError: the certificates do not lead from the start to the state.
        """
        links, raws = [self.links[0]], []
        for certificate in certificates:
            if links[-1].commit == state.head:
                break
            links.append(self._verified(certificate, links[-1]))
            raws.append(encode_certificate(certificate))
        if links[-1].commit != state.head:
            raise RemoteProtocolError("a state that is not on the chain offered with it", "a commit of the chain")
        root = await self._root(state)
        # certificates first: a generation that the log does not lead to is worth nothing at the next start
        for link, raw in list(zip(links[1:], raws, strict=True))[len(self.certificates) :]:
            await self.tools.log.log_certificate(link.record.parent if link.record else CommitId(b""), raw)
        await self.tools.generations.write(state, root)
        self.links, self.certificates, self.state, self.root = links, raws, state, root

    def _verified(self, certificate: Certificate, parent: ChainLink) -> ChainLink:
        return verify_certificate(certificate, parent, verifier=self.tools.verifier, run_id=self.tools.run_id)

    def _extend(self, certificate: Certificate, raw: bytes) -> None:
        self.links.append(self._verified(certificate, self.head))
        self.certificates.append(raw)

    async def apply(self, link: ChainLink, certificate: Certificate) -> AppliedCommit:
        """Log the certificate, then apply the commit (rule 19); its bytes must be on disk.

        Raises:
            LocalProtocolError: the bytes are not here, or the link does not follow our head.
        """
        if link.record is None or link.record.parent != self.head.commit:
            raise LocalProtocolError("a commit that does not follow our head", "the next one")
        data = await self._read_results(link)
        if data is None:
            raise LocalProtocolError("a commit whose bytes are not on disk", "GatherBytes first")
        raw = encode_certificate(certificate)
        await self.tools.log.log_certificate(self.head.commit, raw)
        previous = self.state
        self.state = await self._advance(previous, link, data)
        self.links.append(link)
        self.certificates.append(raw)
        self.root = await self._root(self.state)
        await self.tools.generations.write(self.state, self.root)
        await self.tools.log.drop_results(link.record.parent, [part.result_hash for part in link.record.slices])
        await self._drop_old_updates()
        return AppliedCommit(self.state, self.root, previous.anchor_N)

    async def _drop_old_updates(self) -> None:
        """Updates are kept until they weigh more than some snapshots: beyond that a snapshot is the shorter way (rule 24)."""
        update_bytes = self.tools.codec.encoded_bytes(self.tools.grid.num_elements)
        kept = KEPT_UPDATE_SNAPSHOTS * SNAPSHOT_BYTES_PER_VALUE * self.tools.grid.num_elements // update_bytes
        if len(self.links) > kept + 1:
            await self.tools.log.drop_results(self.links[-kept - 2].commit, ())

    async def _read_results(self, link: ChainLink) -> list[bytes] | None:
        if link.record is None:
            return None
        parts: list[bytes] = []
        for part in link.record.slices:
            data = await self.tools.log.read_result(link.record.parent, part.result_hash)
            if data is None:
                return None
            parts.append(data)
        return parts

    async def _read_good_results(self, link: ChainLink) -> list[bytes] | None:
        """As `_read_results`, for bytes that an earlier process wrote: what was damaged since is deleted, to be fetched again."""
        data, record = await self._read_results(link), link.record
        if data is None or record is None:
            return None
        pairs = list(zip(record.slices, data, strict=True))
        good = await self.tools.offload.run(
            lambda: [part.result_hash for part, blob in pairs if self._is_result(part, blob)], cost_s=APPLY_COST_S
        )
        if len(good) < len(pairs):
            log.warning("result_damaged", index=link.index, good=len(good), of=len(pairs))
            await self.tools.log.drop_results(record.parent, good)
            return None
        return data

    def _is_result(self, part: SliceRecord, data: bytes) -> bool:
        try:
            chunks = split_chunks(data, self.tools.codec, self.tools.grid, part.first_chunk, part.stop_chunk)
        except RemoteProtocolError:
            return False
        return result_root(chunks) == part.result_hash

    async def _advance(self, state: UnitState, link: ChainLink, data: Sequence[bytes]) -> UnitState:
        record = link.record
        if record is None:
            raise LocalProtocolError("a link without a record", "a commit")
        return await self.tools.offload.run(lambda: self._outer(state, link, record, data), cost_s=APPLY_COST_S)

    def _outer(self, state: UnitState, link: ChainLink, record: CommitRecord, data: Sequence[bytes]) -> UnitState:
        grid, codec = self.tools.grid, self.tools.codec
        update_N = torch.empty(grid.num_elements, dtype=torch.float32)
        for part, blob in zip(record.slices, data, strict=True):
            chunks = split_chunks(blob, codec, grid, part.first_chunk, part.stop_chunk)
            for chunk, encoded in zip(range(part.first_chunk, part.stop_chunk), chunks, strict=True):
                begin, stop = grid.bounds(chunk)
                update_N[begin:stop] = codec.decode(encoded, stop - begin)
        anchor_N, momentum_N = apply_outer_step(state.anchor_N, state.momentum_N, update_N, record.outer)
        return UnitState(state.unit, link.commit, link.index, link.total_tokens, anchor_N, momentum_N)

    async def _root(self, state: UnitState) -> Root:
        return await self.tools.offload.run(lambda: state_root(state, self.tools.grid), cost_s=APPLY_COST_S)


def adoption_shift(
    applied: AppliedCommit, record: CommitRecord, me: PeerId, theta_N: torch.Tensor | None, grid: ChunkGrid
) -> torch.Tensor:
    """What to add to the local parameters (rule 20), (N,) float32: A' - theta_snapshot where our contribution was counted, so
    that only the work since the snapshot remains on top of A'; A' - A elsewhere, so that uncounted work is kept.
    """
    shift_N = torch.sub(applied.state.anchor_N, applied.previous_anchor_N)
    if theta_N is not None:
        for first_chunk, stop_chunk in covered_chunks(record, me):
            begin, stop = grid.span(first_chunk, stop_chunk)
            shift_N[begin:stop] = torch.sub(applied.state.anchor_N[begin:stop], theta_N[begin:stop])
    return shift_N
