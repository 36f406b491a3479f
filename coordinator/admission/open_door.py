"""The open door of a run: challenges, the check of their answers, and credentials for strangers and members.

The rules are in coordinator/policy/door.py and standing_core.py. A challenge costs the host nothing to keep. An answer is checked in a
thread, one at a time, after everything that is cheaper.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.network.pacing.byte_quota import ByteQuota
from coordinator.ledger.juniors import admit_junior, door_facts, junior_of, juniors, renew_junior, work_days
from coordinator.ledger.ledger import Applicant, Ledger
from coordinator.ledger.verdict_rows import audited_in
from coordinator.policy.admission import AdmissionDecision, Verdict
from coordinator.policy.door import (
    DAY_S,
    CheckState,
    DoorRules,
    JuniorFacts,
    address_prefix,
    decide_return,
    decide_stranger,
    may_check,
    why_aside,
)
from coordinator.policy.standing_core import PeerTrust, StandingRules, standing_after
from protocol.errors import RefusedError, TemporaryError
from protocol.identity.credential import CredentialRequest
from protocol.identity.identity import public_key_from_peer_id
from protocol.identity.names import peer_name
from protocol.identity.puzzle import NONCE_BYTES, Challenge, check_challenge, is_answer, make_challenge, read_challenge
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId, RunId

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock, Offload
    from coordinator.ledger.ledger_writer import LedgerWriter
    from coordinator.presence.junior_standings import JuniorStandings
    from protocol.identity.credential import CertificateAuthority
    from protocol.run.manifest import RunConfig

_log = structlog.get_logger()

_CHECK_COST_S: Final = 0.02
"""Virtual time of one check."""

QUESTIONS: Final = 20
QUESTIONS_PER_S: Final = 5.0
"""Descriptions of the run that strangers get: so many at once, and so many in a second. One of a large data set has megabytes."""

_ANYBODY: Final = PeerId("")
"""Strangers have one allowance together: before admission a name costs nothing."""

_LONG_INTERVALS: Final = 4
"""A first credential lasts at least so many of the longest intervals: a newcomer needs some rounds to be counted in one."""


def door_rules(config: RunConfig) -> DoorRules:
    """The numbers of an open run's door."""
    own = config.admission
    return DoorRules(
        puzzle_bits=own.puzzle_bits,
        max_strangers=own.max_strangers or max(1, config.run.most_peers // 4),
        prefix_places=own.prefix_places,
        prefix_daily=own.prefix_daily,
        first_s=max(60.0 * own.trial_minutes, _LONG_INTERVALS * config.round.longest_interval_s),
        life_s=3600.0 * own.stranger_hours,
    )


def standing_rules(config: RunConfig) -> StandingRules:
    """The numbers by which strangers become members."""
    own = config.admission
    day_tokens = own.member_day_tokens or max(1, config.round.target_tokens // 10)
    return StandingRules(own.member_days, day_tokens, own.member_kept_percent)


class OpenDoor:
    """The door of one run. Call `restore` before anything else. It keeps `standings` as the ledger has them."""

    def __init__(
        self,
        run_id: RunId,
        rules: DoorRules,
        standing: StandingRules,
        authority: CertificateAuthority,
        ledger: LedgerWriter,
        clock: Clock,
        offload: Offload,
        standings: JuniorStandings,
    ) -> None:
        self._run_id = run_id
        self._rules = rules
        self._standing_rules = standing
        self._authority = authority
        self._ledger = ledger
        self._clock = clock
        self._offload = offload
        self._secret = secrets.token_bytes(32)
        self._checks = CheckState(at_s=clock.monotonic_s())
        self._questions = ByteQuota(QUESTIONS, QUESTIONS / QUESTIONS_PER_S, lambda _: True, clock.monotonic_s)
        self._one = trio.Lock()
        self._standings = standings
        self.trust: Mapping[PeerId, PeerTrust] = {}
        """Of all peers that came by the door. Another mapping replaces it at each change."""

    async def restore(self) -> None:
        """Read who came by the door.

        Raises:
            StorageError: the ledger cannot be read.
        """
        known = await self._ledger.run(juniors)
        self._standings.take(known)
        strangers = self._strangers()
        audited = await self._ledger.run(lambda ledger: audited_in(ledger, known, strangers))
        self.trust = {peer: PeerTrust(standing, audited[peer]) for peer, standing in known.items()}

    @property
    def juniors(self) -> Mapping[PeerId, PeerStanding]:
        """The standings of all peers that came by the door. Another mapping replaces it at each change."""
        return self._standings.juniors

    def challenge(self, public_key: bytes) -> Challenge:
        """A fresh puzzle for the owner of this key."""
        nonce, now_unix_s = secrets.token_bytes(NONCE_BYTES), self._clock.unix_s()
        bits = self._rules.puzzle_bits
        return make_challenge(self._secret, self._run_id, public_key, bits=bits, nonce=nonce, now_unix_s=now_unix_s)

    def require_calm(self) -> None:
        """Raise TemporaryError where strangers ask too often what the run is."""
        if not self._questions.takes(_ANYBODY, 1):
            raise TemporaryError("a crowd at the door", "a free moment", "try again in some seconds")

    async def enter(self, asked: CredentialRequest, answered: bytes, number: int, caller_host: str) -> bytes:
        """The credential of a stranger that solved its puzzle. `answered`: the challenge. `number`: its answer.

        Raises:
            RefusedError: the answer is wrong, of another key, too late, or was given before; or the peer is banned.
            TemporaryError: no place, too many of its address prefix, or a crowd at the door.
            StorageError: the ledger cannot be written.
        """
        prefix, now_unix_s = address_prefix(caller_host), self._clock.unix_s()
        public_key = public_key_from_peer_id(asked.peer_id)
        found = read_challenge(answered)
        bits = self._rules.puzzle_bits
        check_challenge(found, self._secret, self._run_id, public_key, bits=bits, now_unix_s=now_unix_s)
        await self._require_place(asked.peer_id, prefix, now_unix_s)
        await self._check_answer(found, public_key, number, prefix)
        applicant, issue = Applicant(asked.peer_id, public_key, b""), partial(self._issued, asked, now_unix_s)
        decision, credential = await self._ledger.run(
            lambda ledger: admit_junior(
                ledger,
                applicant,
                prefix,
                lambda facts: decide_stranger(facts, self._rules, now_unix_s),
                issue,
                now_unix_s=int(now_unix_s),
            )
        )
        _raise_if_refused(decision)
        await self.restore()
        _log.info("stranger_admitted", peer=peer_name(asked.peer_id), prefix=prefix)
        return credential

    async def _require_place(self, peer: PeerId, prefix: str, now_unix_s: float) -> None:
        """Refuse early: a full door costs no check."""
        facts = await self._ledger.run(lambda ledger: door_facts(ledger, peer, prefix, int(now_unix_s)))
        _raise_if_refused(decide_stranger(facts, self._rules, now_unix_s))
        await self._require_fine(peer, now_unix_s)

    async def _require_fine(self, peer: PeerId, now_unix_s: float) -> None:
        """Refuse a peer that came by the door and that auditors put aside."""
        if peer not in self.juniors:
            return
        found = await self._ledger.run(lambda ledger: audited_in(ledger, [peer], self._strangers()))
        if (error := why_aside(found[peer], now_unix_s)) is not None:
            raise error

    def _strangers(self) -> list[PeerId]:
        return [peer for peer, standing in self.juniors.items() if standing is PeerStanding.STRANGER]

    async def _check_answer(self, found: Challenge, public_key: bytes, number: int, prefix: str) -> None:
        now_s, now_unix_s = self._clock.monotonic_s(), self._clock.unix_s()
        self._checks, error = may_check(self._checks, prefix, found.nonce, found.end_unix_s, now_s, now_unix_s)
        if error is not None:
            raise error
        async with self._one:
            is_right = await self._offload.run(
                lambda: is_answer(found, self._run_id, public_key, number), cost_s=_CHECK_COST_S
            )
        if not is_right:
            raise RefusedError("a wrong answer to the puzzle", "one that solves it", "join again")

    async def renew(self, asked: CredentialRequest) -> bytes:
        """A new credential for a peer that came by the door, with the standing that its work has earned; empty for keepers.

        Raises:
            RefusedError: its place has ended, nothing of it was counted, or auditors put it aside.
            StorageError: the ledger cannot be written.
        """
        peer, now_unix_s = asked.peer_id, self._clock.unix_s()
        issue = partial(self._issued, asked, now_unix_s)

        def renewed(ledger: Ledger) -> tuple[AdmissionDecision, bytes]:
            junior = junior_of(ledger, peer)
            if junior is None:
                return AdmissionDecision(Verdict.ADMIT_AGAIN, "a keeper"), b""
            decision = decide_return(junior, now_unix_s)
            if decision.verdict is Verdict.REFUSE:
                return decision, b""
            audited = audited_in(ledger, [peer], self._strangers())[peer]
            standing = standing_after(junior.standing, work_days(ledger, peer), self._standing_rules, audited)
            return decision, renew_junior(ledger, peer, standing, junior, issue, now_unix_s=int(now_unix_s))

        await self._require_fine(peer, now_unix_s)
        decision, credential = await self._ledger.run(renewed)
        _raise_if_refused(decision)
        before = self.juniors.get(peer)
        await self.restore()
        after = self.juniors.get(peer)
        if after is not None and after is not before:
            _log.info("standing_changed", peer=peer_name(peer), standing=after.word)
        return credential

    def has_ended(self, ledger: Ledger, peer: PeerId) -> bool:
        """Whether the peer came by the door and its credential has ended. Blocks."""
        if peer not in self.juniors:
            return False
        junior = junior_of(ledger, peer)
        return junior is not None and self._clock.unix_s() >= junior.ends_unix_s

    def forget(self, peers: Collection[PeerId]) -> None:
        """These peers are keepers from now on, in memory; the ledger says so already."""
        self._standings.take({peer: standing for peer, standing in self.juniors.items() if peer not in peers})
        self.trust = {peer: trust for peer, trust in self.trust.items() if peer not in peers}

    def _issued(
        self,
        asked: CredentialRequest,
        now_unix_s: float,
        serial: int,
        standing: PeerStanding,
        junior: JuniorFacts | None,
    ) -> tuple[bytes, int]:
        """The credential (DER) of one request, made inside the ledger's transaction, and when it ends (unix s)."""
        is_first = junior is None and standing is PeerStanding.STRANGER
        life_s = self._rules.first_s if is_first else self._rules.life_s
        credential = self._authority.issue(
            asked, self._run_id, now_unix_s=now_unix_s, days=life_s / DAY_S, serial=serial, standing=standing
        )
        return credential, int(now_unix_s + life_s)


def _raise_if_refused(decision: AdmissionDecision) -> None:
    if decision.error is not None:
        raise decision.error
