"""A peer's report to the coordinator and its answer, as frozen dataclasses within bounds; report_bytes.py has their bytes.

Reports are hints for screens and for the start of the run; commits count only with their certificates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from protocol.grids import MOST_G_PER_KWH
from protocol.host.calls import NO_COMMIT, NO_ROOT
from protocol.host.host_statements import (
    NO_GATE_NEWS,
    NO_REVOCATION_NEWS,
    NO_STATEMENTS,
    GateNews,
    HostStatements,
    RevocationNews,
)
from protocol.host.report_pace import MAX_AGAIN_S
from protocol.identity.chosen_name import NONE_CHOSEN, ChosenName
from protocol.identity.envelope import OVERHEAD_BYTES
from protocol.ids import HASH_BYTES, CommitId, Root, UnitName
from protocol.received import MAX_TEXT, require, require_hash_or_none
from protocol.rounds.messages.bounds import MAX_VOTE_BYTES
from protocol.rounds.messages.claim import MAX_CLAIM_BYTES
from protocol.rounds.messages.messages import FalseSum
from protocol.run.source_section import MAX_SOURCES
from protocol.tensors.expert_schema import MAX_EXPERTS

MAX_CERTIFICATES: Final = 64
"""Certificates per report; one of 64 members is about 12 kB, and a report is cut to 1 MiB."""

MAX_CERTIFICATE_BYTES: Final = 640 << 10
"""Sum over the certificates of one report: leaves room for the rest below MAX_REQUEST_BYTES."""

REPORT_DIGEST_BYTES: Final = 8
"""Length of a report's digest (protocol/host/report_delta.py): enough to tell apart the few reports that one peer sends."""

MAX_DOUBLE_VOTES: Final = 8
"""Proofs of double votes in one report."""

MAX_FALSE_SUMS: Final = 8
"""Accusations of reducers in one report."""

MAX_SIGNED_BYTES: Final = max(MAX_VOTE_BYTES, OVERHEAD_BYTES + MAX_CLAIM_BYTES)
"""One half of such a proof: an ack or a claim in its envelope."""

MAX_JOULES: Final = 1e15
"""Of one process: a machine of a hundred kilowatts for three hundred years."""

HELPING: Final = "helping"
"""The state of a peer that only reduces: it counts as no member, neither at the start nor for the most that a run takes."""

MAX_UNITS: Final = 1024
"""Units in one report, and milestones in one answer."""

_MAX_ADDRESSES: Final = 16
_MAX_HELDOUT: Final = 64
_MAX_COUNT: Final = 1 << 60
WORST_NATS: Final = 999_999.0
"""Nats a byte: a held-out loss above it, or one that is no number, is told as this. A spoiled model has to be measured, too."""


def bounded_nats(nats: float) -> float:
    """A measured loss as a report tells it."""
    return min(nats, WORST_NATS) if math.isfinite(nats) else WORST_NATS


def _require_report_digest(value: bytes) -> None:
    found = f"a report digest of {len(value)} bytes"
    require(len(value) in (0, REPORT_DIGEST_BYTES), found, f"none or {REPORT_DIGEST_BYTES}")


@dataclass(frozen=True, slots=True)
class HeldoutResult:
    """Held-out loss of the committed parameters of `commit`, `nats` per byte; `prose_nats` over the run's prose, if any. In a run
    of experts `of_experts` are the tested ones, each with its loss on the documents that go to it; `nats` is their mean.
    """

    commit: CommitId
    index: int
    total_tokens: int
    nats: float
    prose_nats: float | None = None
    of_experts: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        require(len(self.commit) == HASH_BYTES, f"a commit id of {len(self.commit)} bytes", f"{HASH_BYTES} bytes")
        experts = tuple(expert for expert, _ in self.of_experts)
        is_fine = len(experts) <= MAX_EXPERTS and experts == tuple(sorted(set(experts)))
        is_fine = is_fine and all(0 <= expert < MAX_EXPERTS for expert in experts)
        require(is_fine, f"held-out losses of experts {experts[:8]}", f"0 to {MAX_EXPERTS - 1}, each once, in order")
        for nats in (self.nats, self.prose_nats or 0.0, *(nats for _, nats in self.of_experts)):
            require(math.isfinite(nats) and 0 <= nats < 1e6, f"held-out loss {nats}", "0 to 10^6 nats")


@dataclass(frozen=True, slots=True)
class UnitStanding:
    """The newest commit of a unit whose state root a peer computed, that root, and the number of rounds up to it."""

    unit: UnitName
    state_commit: CommitId
    state_root: Root
    index: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.index <= _MAX_COUNT, f"index {self.index}", "0 to 2^60")
        require_hash_or_none("state_commit", self.state_commit)
        require_hash_or_none("state_root", self.state_root)
        require(len(self.unit) <= MAX_TEXT, f"a unit name of {len(self.unit)} letters", f"at most {MAX_TEXT}")


@dataclass(frozen=True, slots=True)
class UnitBytes:
    """Payload of bulk streams of one unit since the peer's process started: contributions, results and states."""

    unit: UnitName
    bytes_up: int
    bytes_down: int

    def __post_init__(self) -> None:
        require(len(self.unit) <= MAX_TEXT, f"a unit name of {len(self.unit)} letters", f"at most {MAX_TEXT}")
        for count in (self.bytes_up, self.bytes_down):
            require(0 <= count <= _MAX_COUNT, f"{count} bytes of a unit", "0 to 2^60")


@dataclass(frozen=True, slots=True)
class AckPair:
    """Two signed acks, or claims, or an ack and a goodbye, of one voter that contradict each other (double_votes.py). The host checks
    them. A goodbye with a long record in it does not fit: the host finds it in the certificates of a fork.
    """

    one: bytes
    other: bytes

    def __post_init__(self) -> None:
        longest = max(len(self.one), len(self.other))
        require(longest <= MAX_SIGNED_BYTES, f"a signed message of {longest} bytes", f"at most {MAX_SIGNED_BYTES}")


@dataclass(frozen=True, slots=True)
class Proofs:
    """Proofs of members' lies.

    Attributes:
        double_votes: of voters that contradicted themselves.
        false_sums: of reducers that signed false sums; the host asks the peer for the proofs, which are too long for a report.
    """

    double_votes: tuple[AckPair, ...] = ()
    false_sums: tuple[FalseSum, ...] = ()

    def __post_init__(self) -> None:
        found = len(self.double_votes)
        require(found <= MAX_DOUBLE_VOTES, f"{found} double votes", f"at most {MAX_DOUBLE_VOTES}")
        found = len(self.false_sums)
        require(found <= MAX_FALSE_SUMS, f"{found} false sums", f"at most {MAX_FALSE_SUMS}")


NO_PROOFS: Final = Proofs()


@dataclass(frozen=True, slots=True)
class EnergySpent:
    """The counts of a peer's meters since its process started: `joules` of its cards and processor, by all programs, and the tokens
    that it trained meanwhile. `g_per_kwh`: grams of CO2 a kilowatt-hour, its owner's or else the
    run's.
    """

    joules: float
    tokens: int = 0
    g_per_kwh: float | None = None

    def __post_init__(self) -> None:
        require(
            math.isfinite(self.joules) and 0 <= self.joules <= MAX_JOULES, f"{self.joules} J", f"0 to {MAX_JOULES:g}"
        )
        require(0 <= self.tokens <= _MAX_COUNT, f"{self.tokens} tokens", "0 to 2^60")
        grams = self.g_per_kwh or 0.0
        is_fine = math.isfinite(grams) and 0 <= grams <= MOST_G_PER_KWH
        require(is_fine, f"{grams} g of CO2 a kWh", f"0 to {MOST_G_PER_KWH:g}")


@dataclass(frozen=True, slots=True)
class OwnCounts:
    """A peer's own counts of its work, which nobody checks.

    Attributes:
        source_tokens: of a mixture, tokens of each source that it trained on since its process started; empty without one.
        energy: None without a meter.
    """

    source_tokens: tuple[int, ...] = ()
    energy: EnergySpent | None = None

    def __post_init__(self) -> None:
        require(len(self.source_tokens) <= MAX_SOURCES, f"{len(self.source_tokens)} sources", f"at most {MAX_SOURCES}")
        for count in self.source_tokens:
            require(0 <= count <= _MAX_COUNT, f"{count} tokens of a source", "0 to 2^60")


NO_COUNTS: Final = OwnCounts()


@dataclass(frozen=True, slots=True)
class PeerReport:
    """A peer's report of itself, every few seconds, signed.

    Attributes:
        state: one word ("joining", "training", "spare", "paused", "leaving", ..); `reason` says why in one sentence.
        head, index, total_tokens: newest commit applied; empty and 0 before the start.
        tokens_ready: trained and not yet credited.
        loss_nats: mean training loss of the latest steps, None before the first.
        bytes_up, bytes_down: payload since the process started.
        state_commit, state_root: newest commit whose state root this peer computed, and that root.
        is_ready_to_start: data, model and network are ready; it waits for the start record.
        certificates: of commits in order, as received, from the index that the coordinator asked for.
        addresses: own multiaddresses.
        signed: what the host signed, as far as this peer has it.
        version: of its program, empty where it is not reported.
        is_outbound_only: it takes no connections; it works over those that it makes itself.
        like: of a short report, the digest of the whole one that it builds on; empty in a whole one.
        beside: the heads of units other than the spine.
        experts: in a run of experts, those that it holds; before the start those that it wants whatever others hold.
        expert_room: how many it would hold.
        incarnation: the disk that it votes with; 0 where it is not reported.
        unit_bytes: of a run of several units the bulk part of `bytes_up` and `bytes_down` by unit.
        lane: of a pipeline run, the lane or group of replicas that it serves in; None where it serves in none.
        could_tokens_per_s: the rate of its stage if it never had to wait for others; 0 before it is known.
        proofs: of members' lies, which this peer found or was shown.
        counts: of its own since its process started.
        chosen: name and team, for display only. A received one that cannot be shown is empty.
    """

    state: str
    reason: str
    unit: UnitName
    head: CommitId = NO_COMMIT
    index: int = 0
    total_tokens: int = 0
    tokens_per_s: float = 0.0
    tokens_ready: int = 0
    loss_nats: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    state_commit: CommitId = NO_COMMIT
    state_root: Root = NO_ROOT
    is_ready_to_start: bool = False
    heldout: tuple[HeldoutResult, ...] = ()
    certificates: tuple[bytes, ...] = ()
    addresses: tuple[str, ...] = ()
    signed: HostStatements = NO_STATEMENTS
    version: str = ""
    is_outbound_only: bool = False
    like: bytes = b""
    beside: tuple[UnitStanding, ...] = ()
    experts: tuple[int, ...] = ()
    expert_room: int = 0
    incarnation: int = 0
    unit_bytes: tuple[UnitBytes, ...] = ()
    lane: int | None = None
    could_tokens_per_s: float = 0.0
    proofs: Proofs = NO_PROOFS
    chosen: ChosenName = NONE_CHOSEN
    counts: OwnCounts = NO_COUNTS

    def __post_init__(self) -> None:
        _require_report_digest(self.like)
        for name in ("head", "state_commit", "state_root"):
            require_hash_or_none(name, getattr(self, name))
        for text in (self.state, self.reason, self.unit, self.version, self.nickname, self.team, *self.addresses):
            require(len(text) <= MAX_TEXT, f"a text of {len(text)} letters in a report", f"at most {MAX_TEXT}")
        for name in ("index", "total_tokens", "tokens_ready", "bytes_up", "bytes_down"):
            value = getattr(self, name)
            require(0 <= value <= _MAX_COUNT, f"{name} {value}", "0 to 2^60")
        for rate in (self.tokens_per_s, self.could_tokens_per_s):
            require(math.isfinite(rate) and rate >= 0, f"{rate} tokens/s", "a rate")
        require(0 <= (self.lane or 0) < 1 << 32, f"lane {self.lane}", "a whole number of 32 bits")
        # NaN and infinity would poison everybody's loss curve.
        require(math.isfinite(self.loss_nats or 0.0), f"training loss {self.loss_nats}", "a finite number")
        sizes = {"results": (len(self.heldout), _MAX_HELDOUT), "addresses": (len(self.addresses), _MAX_ADDRESSES)}
        sizes["units"] = max(len(self.beside), len(self.unit_bytes)), MAX_UNITS
        sizes["experts"] = max((len(self.experts), *(e + 1 for e in self.experts), self.expert_room)), MAX_EXPERTS
        sizes["certificates"] = len(self.certificates), MAX_CERTIFICATES
        for what, (found, most) in sizes.items():
            require(found <= most, f"{found} {what}", f"at most {most}")

    @property
    def double_votes(self) -> tuple[AckPair, ...]:
        """As in `proofs`."""
        return self.proofs.double_votes

    @property
    def start_record(self) -> bytes:
        """As in `signed`; so are the next four."""
        return self.signed.start_record

    @property
    def known_revocations(self) -> bytes:
        """Fingerprints."""
        return self.signed.known_revocations

    @property
    def revocations(self) -> tuple[bytes, ...]:
        """Signed entries."""
        return self.signed.revocations

    @property
    def known_milestones(self) -> bytes:
        """Fingerprints."""
        return self.signed.known_milestones

    @property
    def milestones(self) -> tuple[bytes, ...]:
        """In the host's envelopes."""
        return self.signed.milestones

    @property
    def source_tokens(self) -> tuple[int, ...]:
        """Of a mixture, tokens of each source that it trained on; empty without one."""
        return self.counts.source_tokens

    @property
    def nickname(self) -> str:
        """The name that the volunteer chose; empty for none."""
        return self.chosen.nickname

    @property
    def team(self) -> str:
        """The team that the volunteer chose; empty for none."""
        return self.chosen.team


@dataclass(frozen=True, slots=True)
class StartNews:
    """Why the run has not started, and the host's signed start record once it has (domain START_DOMAIN)."""

    reason: str = ""
    start_record: bytes = b""


NO_START_NEWS: Final = StartNews()


@dataclass(frozen=True, slots=True)
class ReportReply:
    """The coordinator's head, and the index of the first certificate that it wants next.

    Attributes:
        is_final_checkpoint_written: the run is finished and the host has stored its last state: peers may leave.
        bans: revocations that the peer or the coordinator lacks.
        like: the digest of the report as it was taken: the next one may be short if it has the same. Empty from a coordinator
            that takes whole ones only.
        live_others: other peers that have reported lately and taken up the run.
        again_in_s: seconds until the peer reports again unless it has something urgent; 0 from an older coordinator.
        start: for a peer that waits for the start.
        milestones: newer ones than the peer has, of the units that it reports, in the host's envelopes.
        gate: of the loss gate.
    """

    phase: str
    head: CommitId
    index: int
    want_from_index: int
    is_final_checkpoint_written: bool = False
    bans: RevocationNews = NO_REVOCATION_NEWS
    like: bytes = b""
    live_others: int = 0
    again_in_s: float = 0.0
    start: StartNews = NO_START_NEWS
    milestones: tuple[bytes, ...] = ()
    gate: GateNews = NO_GATE_NEWS

    def __post_init__(self) -> None:
        _require_report_digest(self.like)
        again_s = self.again_in_s
        require(0.0 <= again_s <= MAX_AGAIN_S, f"a next report in {again_s} s", f"0 to {MAX_AGAIN_S:g} s")

    @property
    def revocations(self) -> tuple[bytes, ...]:
        """As in `bans`; so are the next two."""
        return self.bans.revocations

    @property
    def asks_revocations(self) -> bool:
        """Whether the coordinator lacks some."""
        return self.bans.asks_revocations

    @property
    def known_revocations(self) -> bytes:
        """Fingerprints."""
        return self.bans.known_revocations


def cut_certificates(certificates: Sequence[bytes]) -> tuple[bytes, ...]:
    """As many of the first certificates as fit into one report."""
    first = certificates[:MAX_CERTIFICATES]
    sums = accumulate(len(certificate) for certificate in first)
    return tuple(part for part, so_far in zip(first, sums, strict=True) if so_far <= MAX_CERTIFICATE_BYTES)
