"""A peer that lies: real code of a release, changed where one admitted member could change it for its own good.

`lie` is called in the peer's process before its command line (`running_potluck(..., before=...)`). A file says which lie is told now,
so a test can let one lie follow another in a single run. As long as the file is not there, or is empty, the peer is honest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
import trio

from averaging.network.seams.interfaces import Snapshot, Stream
from averaging.rounds.exchange import exchange, exchange_driver
from averaging.rounds.lineage.round_context import Seal
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.peer_rounds import PeerRounds
from averaging.rounds.traffic import transfer
from averaging.rounds.traffic.contribution import DeltaEncoder
from averaging.rounds.unit_service import RoundService
from protocol.identity.envelope import NEVER_MS, seal, seal_of
from protocol.identity.identity import Identity
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds import attempt, voting
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN, claim_of, sum_of
from protocol.rounds.lineage.rule_numbers import rules_after
from protocol.rounds.messages.claim import encode_claim, encode_sum
from protocol.rounds.messages.messages import (
    NO_COMMIT_NAMED,
    Ack,
    Certificate,
    Committed,
    Member,
    Proposal,
    ResultHeader,
)
from protocol.rounds.messages.record import Attestation, Ballot, CommitRecord, Contributor, SliceRecord
from protocol.rounds.messages.requests import FetchResult
from protocol.rounds.messages.wire import encode_message, encode_record
from protocol.rounds.schedule.outer_rule import outer_of_round

ROSTER: Final = "roster"
"""As a leader it writes itself as the only voter of the next round."""

CREDITS: Final = "credits"
"""As a leader it credits itself with TOKENS_OF_A_LIAR."""

ALONE: Final = "alone"
"""It sends everybody a lineage from the start of the run that it signed alone, once."""

STRANGERS: Final = "strangers"
"""As `ALONE`, signed with keys that nobody admitted to the run."""

WITHHELD: Final = "withheld"
"""As a reducer of another leader's attempt it announces its results and gives their bytes to nobody."""

FALSE_COUNTS: Final = "false counts"
"""As a reducer it writes tokens and roots of others into its results that are not theirs."""

DELTA: Final = "delta"
"""As a contributor it sends FACTOR times its delta."""

TOKENS_OF_A_LIAR: Final = 1 << 50
FACTOR: Final = -100.0
NUM_COMMITS: Final = 64
"""Commits of a lineage that was signed alone: more work than the others can have done."""

NUM_STRANGERS: Final = 3
LOOKS_EVERY_S: Final = 0.2

_Told = Callable[[], str]


def lie(asked: Path) -> None:
    """Tell the lies that the file `asked` names, from now on in this process."""
    told = partial(_told, asked)
    _lie_in_records(told)
    _lie_about_lineages(told)
    _lie_as_reducer(told)
    _lie_in_deltas(told)


def _told(asked: Path) -> str:
    try:
        return asked.read_text(encoding="utf8")
    except FileNotFoundError:
        return ""


# --- as a leader --------------------------------------------------------------------------------------------------------------


def changed_record(kind: str, record: CommitRecord, parent: ChainLink) -> CommitRecord:
    """The record that this liar settles in the place of an honest one."""
    me = record.ballot.peer
    if kind == ROSTER:
        return replace(record, roster=(me,), incarnations=record.incarnations[:1])
    if kind == CREDITS:
        entries = tuple(
            replace(entry, tokens=TOKENS_OF_A_LIAR, credited_tokens=TOKENS_OF_A_LIAR) if entry.peer == me else entry
            for entry in record.contributors
        )
        total_tokens = parent.total_tokens + sum(entry.credited_tokens for entry in entries)
        return replace(record, contributors=entries, total_tokens=total_tokens, weight_cap_tokens=TOKENS_OF_A_LIAR)
    return record


def _lie_in_records(told: _Told) -> None:
    """Its records are changed, and it finds nothing wrong with them, as a voter either."""
    make, problem, why_not_right = attempt.make_record, attempt.record_problem, voting._why_not_right

    def make_record(parent: ChainLink, *rest: object) -> CommitRecord:
        return changed_record(told(), make(parent, *rest), parent)  # type: ignore[arg-type]

    def record_problem(parent: ChainLink, record: CommitRecord, *rest: object) -> str:
        return "" if told() in (ROSTER, CREDITS) else problem(parent, record, *rest)  # type: ignore[arg-type]

    attempt.make_record = make_record  # type: ignore[assignment]
    attempt.record_problem = record_problem  # type: ignore[assignment]
    voting._why_not_right = lambda state, settle, *rest: (
        "" if settle.ballot.peer == state.config.me.peer else why_not_right(state, settle, *rest)
    )


# --- a lineage of its own -----------------------------------------------------------------------------------------------------


def _lie_about_lineages(told: _Told) -> None:
    run = PeerRounds.run

    async def run_beside(self: PeerRounds, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tell_lineages, self, told)
            await run(self, task_status=task_status)

    PeerRounds.run = run_beside  # type: ignore[method-assign]


async def _tell_lineages(rounds: PeerRounds, told: _Told) -> None:
    """Send each lineage once to everybody, commit by commit."""
    left = [ALONE, STRANGERS]
    while left:
        await trio.sleep(LOOKS_EVERY_S)
        kind = told()
        if kind not in left:
            continue
        left.remove(kind)
        (service,) = rounds.services
        signers = (
            [_own_signer(rounds, service)] if kind == ALONE else [_stranger(service, n) for n in range(NUM_STRANGERS)]
        )
        everybody = tuple(sorted(service.state.peers))
        for certificate in await signed_alone(service, signers, NUM_COMMITS):
            await rounds.send_and_wait(everybody, Committed(service.unit, certificate))


@dataclass(frozen=True)
class _Signer:
    """A key that contributes and votes in a lineage of its own."""

    member: Member
    seal: Seal


def _own_signer(rounds: PeerRounds, service: RoundService) -> _Signer:
    return _Signer(service.config.me, rounds._tools.seal)


def _stranger(service: RoundService, number: int) -> _Signer:
    identity = Identity(bytes([number]) * 32)

    async def sealed(payload: bytes) -> bytes:
        return seal(identity, ROUND_DOMAIN, service.config.run_id, 1, NEVER_MS, payload)

    return _Signer(Member(identity.peer_id, 1, 1), sealed)


async def signed_alone(service: RoundService, signers: Sequence[_Signer], length: int) -> list[Certificate]:
    """So many commits from the start of the run on, each with everything that its signers can sign; the first is a lone one."""
    link, certificates = service.chain.links[0], list[Certificate]()
    for place in range(length):
        record = await _signed_record(service, link, signers, lone=not place)
        raw = encode_record(record)
        next_link = link_after(link, raw)
        ack = Ack(
            link.unit,
            link.commit,
            record.ballot,
            next_link.commit,
            record.lone,
            None,
            NO_COMMIT_NAMED,
            voting.ACK_VERSION,
        )
        acks = [await signer.seal(encode_message(ack)) for signer in signers]
        certificates.append(Certificate(raw, tuple(acks)))
        link = next_link
    return certificates


async def _signed_record(
    service: RoundService, parent: ChainLink, signers: Sequence[_Signer], *, lone: bool
) -> CommitRecord:
    config, tokens = service.config, max(1, parent.target_tokens)
    members = sorted((signer.member for signer in signers), key=lambda member: member.peer)
    reducer = signers[0]
    root = Root(bytes([7]) * 32)
    record = CommitRecord(
        unit=parent.unit,
        parent=parent.commit,
        index=parent.index + 1,
        ballot=Ballot(1 if lone else 0, reducer.member.peer),
        slices=(SliceRecord(0, config.num_chunks, reducer.member.peer, root, ()),),
        contributors=tuple(
            Contributor(m.peer, m.incarnation, root, tokens, tokens, session=m.session, attests=1) for m in members
        ),
        codec=config.codec,
        weight_cap_tokens=tokens,
        total_tokens=parent.total_tokens + tokens * len(members),
        outer=outer_of_round(config.outer, config.momentum_from_tokens, parent),
        next_target_tokens=parent.target_tokens,
        roster=tuple(member.peer for member in members),
        incarnations=tuple(member.incarnation for member in members),
        attested=Attestation(CommitId(root), root),
        lone=lone,
        result_codec=config.result_codec,
        rules=rules_after(parent.rules, in_turns=False),
        attestations=(Attestation(CommitId(root), root),),
    )
    seal_by = {signer.member.peer: signer.seal for signer in signers}
    entries = [
        replace(entry, seal=seal_of(await seal_by[entry.peer](encode_claim(claim_of(record, entry)))))
        for entry in record.contributors
    ]
    (part,) = record.slices
    part = replace(part, seal=seal_of(await reducer.seal(encode_sum(sum_of(record, part)))))
    return replace(record, contributors=tuple(entries), slices=(part,))


# --- as a reducer -------------------------------------------------------------------------------------------------------------


def _lie_as_reducer(told: _Told) -> None:
    send_result, serve_result = exchange.Exchange._send_result, transfer.TransferService._send_result
    with_sum = exchange._with_sum

    async def send_nothing(
        self: exchange.Exchange, result: exchange.SliceResult, place: int, sender: PeerId, stream: Stream
    ) -> None:
        while (
            told() == WITHHELD and self.proposal.ballot.peer != result.header.reducer
        ):  # the member waits for it meanwhile
            await trio.sleep(LOOKS_EVERY_S)
        await send_result(self, result, place, sender, stream)

    async def serve_nothing(self: transfer.TransferService, request: FetchResult, stream: Stream) -> None:
        if told() != WITHHELD:
            await serve_result(self, request, stream)

    async def false_sum(header: ResultHeader, proposal: Proposal, sealed: Seal) -> ResultHeader:
        leader, me = proposal.ballot.peer, header.reducer
        if told() == FALSE_COUNTS and leader != me:  # it does not cheat itself
            entries = [
                entry if entry.peer == me else replace(entry, tokens=1, root=Root(bytes([7]) * 32))
                for entry in header.included
            ]
            header = replace(header, included=tuple(entries))
        return await with_sum(header, proposal, sealed)

    exchange.Exchange._send_result = send_nothing  # type: ignore[method-assign]
    transfer.TransferService._send_result = serve_nothing  # type: ignore[method-assign]
    exchange._with_sum = false_sum


# --- as a contributor ---------------------------------------------------------------------------------------------------------


def _lie_in_deltas(told: _Told) -> None:
    encoder = exchange_driver._encoder

    def false_encoder(chain: UnitChain, anchor_N: torch.Tensor, snapshot: Snapshot) -> DeltaEncoder:
        if told() == DELTA:
            snapshot = replace(snapshot, theta_N=anchor_N - FACTOR * (anchor_N - snapshot.theta_N))
        return encoder(chain, anchor_N, snapshot)

    exchange_driver._encoder = false_encoder
