"""Messages of a round, as frozen dataclasses: one per wire message, units in field names.

A round is named `(unit, base)`, base being the commit id of its parent; the index is only a label (R1). A commit
record and its parts stand in record.py. Each class checks its own bounds when made. The wire form is
protocol/rounds/messages/wire.py and protocol/proto/round.proto.

Rules: R1, R3, R4, R6, R7, R8, R10, R11, R12, R13, R14, R15, R16, R18, R23 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.received import dropped, require
from protocol.rounds.messages.bounds import (
    MAX_MEMBERS,
    MAX_SLICES,
    MAX_TOKENS,
    VOTE_BYTES,
    require_credential,
    require_hash,
    require_lost,
    require_range,
    require_tiling,
    require_tokens,
)
from protocol.rounds.messages.lane_parts import require_once
from protocol.rounds.messages.record import NO_SPINE, Ballot, Included, Omission, require_spine

NO_COMMIT_NAMED: Final = CommitId(b"")


@dataclass(frozen=True, slots=True)
class Member:
    """A peer as it takes part. Another incarnation is another disk, another session is another process."""

    peer: PeerId
    incarnation: int
    session: int


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """Chunks [first_chunk, stop_chunk) of the unit's grid, summed by `reducer`."""

    first_chunk: int
    stop_chunk: int
    reducer: PeerId

    def __post_init__(self) -> None:
        require_range(self.first_chunk, self.stop_chunk)


@dataclass(frozen=True)
class Proposal:
    """The opener's plan for one attempt (R7). Deadlines are relative to its receipt.

    Attributes:
        codec, result_codec: names of the codecs of contributions and of results; the second is empty where it is the same.
        weight_cap_tokens: a member's weight is min(tokens in its signed header, this); a stranger's is less (stranger_weights.py).
        reduce_within_s: a slice closes at the latest this long after the proposal reached its reducer.
        lone: made without a quorum of the base roster, after patience: every member must ack (R18).
        spine: the spine commit on which the opener stands (R23); NO_SPINE where the unit is the spine itself.
        pre_votes: signed consents of others to this ballot (R6); none for attempt 0 and for a lone one.
    """

    unit: UnitName
    base: CommitId
    index: int
    ballot: Ballot
    members: tuple[Member, ...]
    slices: tuple[SliceSpec, ...]
    codec: str
    weight_cap_tokens: int
    reduce_within_s: float
    level: int = 0
    lone: bool = False
    spine: CommitId = NO_SPINE
    result_codec: str = ""
    pre_votes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        require_hash("base", self.base)
        require_spine(self.spine)
        _require_envelopes("pre-votes", self.pre_votes)
        require(1 <= len(self.members) <= MAX_MEMBERS, f"{len(self.members)} members", f"1 to {MAX_MEMBERS}")
        require(1 <= len(self.slices) <= MAX_SLICES, f"{len(self.slices)} slices", f"1 to {MAX_SLICES}")
        require(len({m.peer for m in self.members}) == len(self.members), "a member listed twice", "each once")
        require(0 < self.weight_cap_tokens <= MAX_TOKENS, f"weight cap {self.weight_cap_tokens}", "1 to 2^53 tokens")
        require(0 < self.reduce_within_s <= 86400, f"reduce_within_s {self.reduce_within_s}", "0 to 86400 s")
        require_tiling([(part.first_chunk, part.stop_chunk) for part in self.slices])

    def member(self, peer: PeerId) -> Member | None:
        """The member entry of `peer`, or None when it takes no part."""
        return next((m for m in self.members if m.peer == peer), None)

    @cached_property
    def participants(self) -> tuple[PeerId, ...]:
        """The members, and reducers that are no members: they do not hold the unit (R7). Cached, since every tick asks for it."""
        return tuple(dict.fromkeys((*(m.peer for m in self.members), *(part.reducer for part in self.slices))))

    @property
    def num_chunks(self) -> int:
        """Chunks of the whole unit."""
        return self.slices[-1].stop_chunk


def _require_envelopes(what: str, raw: tuple[bytes, ...]) -> None:
    require(len(raw) <= MAX_MEMBERS, f"{len(raw)} {what}", f"at most {MAX_MEMBERS}")


@dataclass(frozen=True, slots=True)
class ResultHeader:
    """A reducer's result for one slice, signed in an envelope (R10).

    Attributes:
        included: the contributions summed, in the fixed order of peer ids. None: no live member has anything to offer, no result.
        result_hash: Merkle root over the hashes of the slice's encoded result chunks; zeros without a result.
        weight_sum: sum of the weights of `included` (stranger_weights.py).
        lost_ppm: share of the mean's energy (its sum of squares) that the result's codec left out, in millionths, rounded up;
            0 for a codec that writes every value.
        sum_seal: the seal of what the reducer signs for the record (claim.py).
        credential: proof of the reducer's admission, where the base roster does not have it, or it does not know.
    """

    unit: UnitName
    base: CommitId
    ballot: Ballot
    first_chunk: int
    stop_chunk: int
    reducer: PeerId
    included: tuple[Included, ...]
    omitted: tuple[Omission, ...]
    weight_sum: int
    result_hash: Root
    lost_ppm: int = 0
    sum_seal: bytes = b""
    credential: bytes = b""

    def __post_init__(self) -> None:
        require_credential(self.credential)
        require_hash("base", self.base)
        require_hash("result_hash", self.result_hash)
        require(len(self.included) <= MAX_MEMBERS, f"{len(self.included)} contributions", f"at most {MAX_MEMBERS}")
        require(len(self.omitted) <= MAX_MEMBERS, f"{len(self.omitted)} omissions", f"at most {MAX_MEMBERS}")
        most = MAX_TOKENS * len(self.included)
        require(bool(most) <= self.weight_sum <= most, f"weight sum {self.weight_sum}", f"{int(bool(most))} to {most}")
        require_once(entry.lanes for entry in self.included)
        require_lost(self.lost_ppm)


@dataclass(frozen=True, slots=True)
class Ack:
    """All bytes that the record names are on my disk, and so is this ack (R14). Signed in an envelope.

    Attributes:
        lone: whether the record was made without a quorum.
        before, before_commit: our ack of another record on this base, if there was one. Silence about it is a lie (double_votes.py).
        version: 0 from older releases, whose acks name none.
    """

    unit: UnitName
    base: CommitId
    ballot: Ballot
    commit: CommitId
    lone: bool = False
    before: Ballot | None = None
    before_commit: CommitId = NO_COMMIT_NAMED
    version: int = 0

    def __post_init__(self) -> None:
        if self.before_commit != NO_COMMIT_NAMED:
            require_hash("before_commit", self.before_commit)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A commit: the record as received, and the signed acks of a quorum of the base roster, all of one ballot (R15).

    Attributes:
        acks: whole envelopes, of those voters whose ack has another payload. Certificates of older releases have all of them here.
        leaves: signed goodbyes of roster members that left on this base: they stop counting towards the quorum (R3).
        ack: the payload that most voters signed; empty where all acks are whole.
        votes: what the envelopes of those voters have beside it, VOTE_BYTES each (lineage/compact.py).
    """

    record: bytes
    acks: tuple[bytes, ...] = ()
    leaves: tuple[bytes, ...] = ()
    ack: bytes = b""
    votes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        require(bool(self.ack) == bool(self.votes), f"{len(self.votes)} votes on {len(self.ack)} bytes", "both or none")
        for vote in self.votes:
            require(len(vote) == VOTE_BYTES, f"a vote of {len(vote)} bytes", f"{VOTE_BYTES} bytes")

    @property
    def num_acks(self) -> int:
        """The number of acks in both forms."""
        return len(self.acks) + len(self.votes)


@dataclass(frozen=True, slots=True)
class Settle:
    """The opener's one record for its ballot (R13).

    Attributes:
        holders: peers known to hold all of its bytes.
        leaves: signed goodbyes on this base that the record relies on.
        promises: signed promises of a quorum to this ballot (R16); none for attempt 0 and for a lone one.
    """

    unit: UnitName
    base: CommitId
    ballot: Ballot
    record: bytes
    holders: tuple[PeerId, ...]
    leaves: tuple[bytes, ...] = ()
    promises: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        _require_envelopes("goodbyes", self.leaves)
        _require_envelopes("promises", self.promises)


@dataclass(frozen=True, slots=True)
class Mend:
    """The opener gives slices to other reducers within its attempt (R12); only moved slices are sent again.

    Attributes:
        revision: counts up within a ballot; a lower one is out of date.
        slices: the whole new tiling.
    """

    unit: UnitName
    base: CommitId
    ballot: Ballot
    revision: int
    slices: tuple[SliceSpec, ...]

    def __post_init__(self) -> None:
        require(1 <= len(self.slices) <= MAX_SLICES, f"{len(self.slices)} slices", f"1 to {MAX_SLICES}")
        require(0 < self.revision <= MAX_SLICES, f"revision {self.revision}", f"1 to {MAX_SLICES}")
        require_tiling([(part.first_chunk, part.stop_chunk) for part in self.slices])


@dataclass(frozen=True, slots=True)
class PreVoteRequest:
    """Asked before a take-over (R6): do you, too, find that the opener is gone or overdue? It binds nobody.

    `waited_s` is how long the asker has waited, for voters that cannot tell whether a round is due; `lone`: see Proposal.
    """

    unit: UnitName
    base: CommitId
    ballot: Ballot
    waited_s: float
    lone: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.waited_s <= 1e9, f"waited_s {self.waited_s}", "0 to 10^9 s")


@dataclass(frozen=True, slots=True)
class PreVote:
    """The answer: an objection, empty when the voter agrees. `leads_s`: seconds that the voter still gives the attempt it leads,
    else 0.
    """

    unit: UnitName
    base: CommitId
    ballot: Ballot
    objection: str
    leads_s: float = 0.0

    def __post_init__(self) -> None:
        require(0 <= self.leads_s <= 1e9, f"leads_s {self.leads_s}", "0 to 10^9 s")


@dataclass(frozen=True, slots=True)
class PromiseRequest:
    """First phase of a take-over (R16): refuse lower ballots from now on, and report your highest ack.

    `pre_votes` are the signed consents of others (R6). `lone`: everybody at hand is asked, since there is no quorum (R18).
    """

    unit: UnitName
    base: CommitId
    ballot: Ballot
    pre_votes: tuple[bytes, ...] = ()
    lone: bool = False

    def __post_init__(self) -> None:
        _require_envelopes("pre-votes", self.pre_votes)


@dataclass(frozen=True, slots=True)
class AckedRecord:
    """The highest ballot that a member acked on this base, and the record."""

    ballot: Ballot
    record: bytes


@dataclass(frozen=True, slots=True)
class Promise:
    """Durable before it is sent: no ballot below `ballot` will be acked by me on this base."""

    unit: UnitName
    base: CommitId
    ballot: Ballot
    acked: AckedRecord | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A ballot came too late: `promised` is already promised on this base."""

    unit: UnitName
    base: CommitId
    promised: Ballot


@dataclass(frozen=True, slots=True)
class ResultReady:
    """A reducer tells its attempt's leader that a slice is closed; `header` is its signed ResultHeader envelope."""

    unit: UnitName
    base: CommitId
    ballot: Ballot
    header: bytes


@dataclass(frozen=True, slots=True)
class Committed:
    """A certificate, sent by its leader to everybody, and by others in answer to messages about its base (R15)."""

    unit: UnitName
    certificate: Certificate


@dataclass(frozen=True, slots=True)
class UnitHead:
    """One unit in a heartbeat: the sender's head and its ready tokens."""

    unit: UnitName
    head: CommitId
    index: int
    total_tokens: int
    tokens_ready: int
    can_contribute: bool
    state_commit: CommitId
    state_root: Root

    def __post_init__(self) -> None:
        require_tokens(self.tokens_ready)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One per peer, not per unit (R4): hints, never grounds to adopt or abandon anything.

    Attributes:
        exchange_ms: how long the sender's last upload to all reducers took, or would have taken, 0 when it made none yet. Deadlines
            are learned from it (R11).
        silent: members of the running exchange whom the sender does not hear either (R12).
    """

    member: Member
    is_inbound_reachable: bool
    upload_bytes_per_s: int
    heads: tuple[UnitHead, ...]
    exchange_ms: int = 0
    silent: tuple[PeerId, ...] = ()

    def __post_init__(self) -> None:
        if len(self.silent) > MAX_MEMBERS or len(self.heads) > MAX_MEMBERS:
            raise dropped(f"{len(self.silent)} silent peers, {len(self.heads)} heads", f"at most {MAX_MEMBERS} of each")


@dataclass(frozen=True, slots=True)
class Leave:
    """A graceful goodbye with the leaver's vote on its base (R3): what it promised and acked. It acks nothing there from now on.

    Attributes:
        promised: the highest ballot, LAST_ATTEMPT where the leaver does not know all its votes on this base.
        carrier: the process that keeps the leaver's contribution on this base for the round to come (R8); None where there is none.
        version: 0 from older releases, which do not tell whether they know all their votes.
    """

    member: Member
    unit: UnitName
    base: CommitId
    promised: Ballot | None = None
    acked: AckedRecord | None = None
    carrier: Member | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class DoubleVote:
    """Two signed acks, or claims, or an ack and a goodbye, of one voter that contradict each other (double_votes.py)."""

    unit: UnitName
    one: bytes
    other: bytes


@dataclass(frozen=True, slots=True)
class FalseSum:
    """The sender has a proof that a reducer signed a false sum on this base (audit/sum_proof.py). Peers that hear of it ask for
    the proof by its hash, since it is too long for a message.
    """

    unit: UnitName
    base: CommitId
    reducer: PeerId
    result_hash: Root
    proof_hash: bytes

    def __post_init__(self) -> None:
        for name in ("base", "result_hash", "proof_hash"):
            require_hash(name, getattr(self, name))


RoundMessage = (
    Heartbeat
    | Leave
    | Proposal
    | Mend
    | ResultReady
    | Settle
    | Ack
    | Committed
    | PreVoteRequest
    | PreVote
    | PromiseRequest
    | Promise
    | Refusal
    | DoubleVote
    | FalseSum
)
"""The payload on the control channel "round", one per signed envelope."""
