"""The rules for what a commit record says of others. Voters ask before they ack, and every reader of a certificate asks again.

Everything in a record is signed by the peer that it is about, or follows from the parent and from what is signed. So no leader can
choose the next voters, invent work, or credit itself with tokens.

Records of older releases carry no signatures (`rules` 0), or keep fewer rules (rule_numbers.py). They are read where the parent is as
old; after the first record with newer rules none with older ones may follow.

Rules: R3, R10, R20, R21 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.errors import RemoteProtocolError, VersionError
from protocol.identity.envelope import enveloped, open_envelope
from protocol.identity.identity import Verifier
from protocol.ids import CommitId, PeerId, RunId, short
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.disagreement_rules import disagreement_problem, disagreements
from protocol.rounds.lineage.rule_numbers import (
    NEWEST,
    NO_CAP,
    SIGNED,
    bounds_strangers,
    cap_factor_of,
    is_open,
    may_follow,
    version_of,
)
from protocol.rounds.lineage.stranger_weights import weights_of
from protocol.rounds.lineage.turns import keeps_voters, roster_by_turns, turns_problem
from protocol.rounds.messages.bounds import MAX_MEMBERS, MAX_TOKENS
from protocol.rounds.messages.claim import Input, SliceSum, encode_claim, encode_sum
from protocol.rounds.messages.messages import Member, Proposal, ResultHeader
from protocol.rounds.messages.record import Attestation, CommitRecord, Contributor, Included, OmissionCode, SliceRecord
from protocol.rounds.messages.requests import ContributionHeader

ROUND_DOMAIN: Final = "potluck round"
"""Domain tag of every signed round message; claims, sums and result headers use it too."""

MANY: Final = 3
"""Claims of so many members have a median that one of them cannot make. Of fewer the lower one counts, or the round's target."""

LATE_FACTOR: Final = 4
"""The cap is made from heartbeats, before the claims are there. It may be so many times what the claims would make it."""

CREDIT_FACTOR: Final = 4
"""A commit credits at most so many times the tokens that its round was due at, or that the commit before it credited. So a lie about
tokens cannot end a run, and rounds that really grow are not held up.
"""

KEPT_SHARE: Final = 3
"""A commit may shrink the roster by one part in so many, besides those who said goodbye."""


@dataclass(frozen=True, slots=True)
class SignatureCheck:
    """How signatures and admissions of one run are checked."""

    verifier: Verifier
    run_id: RunId


def record_problem(parent: ChainLink, record: CommitRecord, check: SignatureCheck, left: Collection[PeerId]) -> str:
    """Why nobody may ack this record or follow it; empty when it is right.

    Args:
        parent: the verified commit that the record names as its parent.
        left: voters of the parent whose signed goodbye on it is at hand.
    """
    if record.rewind:
        return "a record without slices, as the host's rewinds are; expected one of a round: nobody votes on a rewind"
    version = version_of(record.rules)
    if version > NEWEST:
        return f"a record with rules {version}; expected {SIGNED} to {NEWEST}: install the newest release"
    if not may_follow(record.rules, parent.rules):
        old = f"a record with rules {version} after {version_of(parent.rules)}, as older releases make it"
        return f"{old}; expected one of this release: ask its leader's owner to install it"
    if not record.rules:
        return ""
    is_of_run = is_open(record.rules) == is_open(parent.rules)
    if not is_of_run or bounds_strangers(record.rules) != bounds_strangers(parent.rules):
        return "a record of an open run in a run by invite, or the other way; expected its parent's rules"
    found, expected = cap_factor_of(record.rules), cap_factor_of(parent.rules)
    if found != expected:
        return f"a record with a weight cap of {found} times the median; expected the run's {expected}"
    return (
        _claims_problem(parent, record, check)
        or _sums_problem(parent, record, check)
        or _numbers_problem(parent, record)
        or _roster_problem(parent, record, left, check)
        or _attestation_problem(record)
    )


# --- what contributors and reducers signed ------------------------------------------------------------------------------------


def claim_of(record: CommitRecord, entry: Contributor) -> ContributionHeader:
    """The claim that a contributor signed, rebuilt from the record.

    Raises:
        RemoteProtocolError: a number of it is out of its bounds.
    """
    pair = record.attestations[entry.attests - 1]
    member = Member(entry.peer, entry.incarnation, entry.session)
    return ContributionHeader(
        record.unit,
        record.parent,
        member,
        entry.tokens,
        record.codec,
        entry.root,
        pair.commit,
        pair.state_root,
        entry.lanes,
        entry.is_stranger,
    )


def sum_of(record: CommitRecord, part: SliceRecord) -> SliceSum:
    """The sum that a slice's reducer signed, rebuilt from the record."""
    left_out = {entry.peer for entry in part.omitted}
    counted = [entry for entry in record.contributors if entry.peer not in left_out]
    return SliceSum(
        record.unit,
        record.parent,
        part.first_chunk,
        part.stop_chunk,
        part.reducer,
        part.result_hash,
        part.lost_ppm,
        _inputs(counted, record.weight_cap_tokens),
        part.disagreeing,
    )


def _inputs(counted: Sequence[Contributor | Included], cap_tokens: int) -> tuple[Input, ...]:
    """The inputs of a sum that counts these contributions, with their weights."""
    weights = weights_of([entry.tokens for entry in counted], [entry.is_stranger for entry in counted], cap_tokens)
    return tuple(
        Input(entry.peer, entry.root, weight, entry.is_stranger) for entry, weight in zip(counted, weights, strict=True)
    )


def may_vote_next(voters: Collection[PeerId], entry: Contributor | Included, check: SignatureCheck) -> bool:
    """Whether a contributor may be among the next voters (R3): it is one of the base's `voters`, or shows a keeper's credential."""
    if entry.peer in voters:
        return True
    standing = check.verifier.standing(entry.credential, entry.peer, check.run_id)
    return standing is not None and standing.may_vote


def _standing_problem(entry: Contributor | Included, rules: int, check: SignatureCheck) -> str:
    """Why a contributor that did not vote before may not be counted as what its claim says. A stranger that does not say so would
    weigh as others do, and turn the medians by which chunks are judged.
    """
    if entry.is_stranger or not bounds_strangers(rules):
        return ""
    standing = check.verifier.standing(entry.credential, entry.peer, check.run_id)
    is_more = standing is not None and standing.may_reduce
    return "" if is_more else "is a stranger and does not say so; expected the claim of a stranger"


def _why_no_reducer(peer: PeerId, credential: bytes, check: SignatureCheck) -> str:
    standing = check.verifier.standing(credential, peer, check.run_id)
    if standing is None:
        return "was not admitted to the run; expected its credential"
    return "" if standing.may_reduce else "is a stranger; expected a member or a keeper"


def member_of(entry: Included) -> Member:
    """The process that a reducer says it counted."""
    return Member(entry.peer, entry.incarnation, entry.session)


def result_problem(
    header: ResultHeader,
    proposal: Proposal,
    check: SignatureCheck,
    voters: Collection[PeerId] | None = None,
    rules: int = 0,
) -> str:
    """Why a result cannot go into a record; empty when everybody whom it counts, and its reducer, signed what it says, and it says of
    each member whether it is counted. `voters`: the base roster; others need proof of their admission. None where it is not known.
    `rules`: those of the base.
    """
    for entry in header.included:
        if not is_signed(check, entry.peer, entry.seal, encode_claim(claim_in(entry, proposal))):
            return f"a result that counts what {short(entry.peer)} did not sign"
        is_voter = voters is None or entry.peer in voters
        if not is_voter and not check.verifier.admits(entry.credential, entry.peer, check.run_id):
            return f"a result that counts {short(entry.peer)} without its admission"
        if not is_voter and (unsaid := _standing_problem(entry, rules, check)):
            return f"a result that counts {short(entry.peer)}, which {unsaid}"
    signed = is_signed(check, header.reducer, header.sum_seal, encode_sum(sum_in(header, proposal)))
    if not signed:
        return f"a result whose sum {short(header.reducer)} did not sign"
    counted_as = next((entry.credential for entry in header.included if entry.peer == header.reducer), None)
    if voters is not None and header.reducer not in voters:
        credential = header.credential if counted_as is None else counted_as
        if why_not := _why_no_reducer(header.reducer, credential, check):
            return f"a result of {short(header.reducer)}, which {why_not}"
    named = [*(entry.peer for entry in header.included), *(entry.peer for entry in header.omitted)]
    if sorted(named) != sorted(member.peer for member in proposal.members):
        return "a result that does not say once of each member whether it is counted"
    if not any(entry.tokens and not entry.is_stranger for entry in header.included):
        return (
            "a result that counts no token of a member or a keeper; expected one at least: without any there is no mean"
        )
    counted = {entry.peer: entry.is_stranger for entry in header.included}
    return disagreement_problem(disagreements(header), counted, header.stop_chunk - header.first_chunk)


def claim_in(entry: Included, proposal: Proposal) -> ContributionHeader:
    """The claim that a member has to have signed for what a reducer says of it."""
    return ContributionHeader(
        proposal.unit,
        proposal.base,
        member_of(entry),
        entry.tokens,
        proposal.codec,
        entry.root,
        entry.attested,
        entry.attested_root,
        entry.lanes,
        entry.is_stranger,
    )


def sum_in(header: ResultHeader, proposal: Proposal) -> SliceSum:
    """The sum that the reducer of a result has to sign, so that the result can go into a record."""
    return SliceSum(
        proposal.unit,
        proposal.base,
        header.first_chunk,
        header.stop_chunk,
        header.reducer,
        header.result_hash,
        header.lost_ppm,
        _inputs(header.included, proposal.weight_cap_tokens),
        disagreements(header),
    )


def is_signed(check: SignatureCheck, peer: PeerId, seal: bytes, payload: bytes) -> bool:
    """Whether this is the peer's seal on this payload, in this run."""
    return _is_signed(check.verifier, check.run_id, peer, seal, payload)


@functools.lru_cache(maxsize=4096)
def _is_signed(verifier: Verifier, run_id: RunId, peer: PeerId, seal: bytes, payload: bytes) -> bool:
    """Cached: a record is checked when it is settled and again in its certificate."""
    try:
        key = verifier.public_key_of(peer)
        raw = enveloped(seal, domain=ROUND_DOMAIN, run_id=run_id, public_key=key, payload=payload)
        open_envelope(raw, verifier=verifier, domain=ROUND_DOMAIN, run_id=run_id, now_unix_ms=None)
    except (RemoteProtocolError, VersionError):
        return False
    return True


def _claims_problem(parent: ChainLink, record: CommitRecord, check: SignatureCheck) -> str:
    voters = frozenset(parent.roster)
    for entry in record.contributors:
        who = short(entry.peer)
        if not 0 < entry.attests <= len(record.attestations):
            return f"{who} attests nothing in the record; expected a commit and its state root"
        try:
            payload = encode_claim(claim_of(record, entry))
        except RemoteProtocolError as error:
            return f"a claim of {who} that cannot be: {error.one_line()}"
        if not is_signed(check, entry.peer, entry.seal, payload):
            return f"{who} did not sign the contribution of {entry.tokens} tokens that the record counts"
        if entry.peer not in voters and not check.verifier.admits(entry.credential, entry.peer, check.run_id):
            return f"{who} was not admitted to the run; expected the credential that the run's authority issued"
        if entry.is_stranger and not bounds_strangers(record.rules):
            return f"{who} says that it is a stranger, in a run that counts all alike; expected a claim without it"
        if entry.peer not in voters and (unsaid := _standing_problem(entry, record.rules, check)):
            return f"{who} {unsaid}"
    return ""


def _sums_problem(parent: ChainLink, record: CommitRecord, check: SignatureCheck) -> str:
    counted: set[PeerId] = set()
    voters, shown = frozenset(parent.roster), {entry.peer: entry.credential for entry in record.contributors}
    for part in record.slices:
        where = f"slice [{part.first_chunk}, {part.stop_chunk})"
        if any(entry.reason or entry.code == OmissionCode.UNKNOWN for entry in part.omitted):
            return f"{where} leaves members out in free words; expected a code"
        if len(part.omitted) > MAX_MEMBERS or len({entry.peer for entry in part.omitted}) < len(part.omitted):
            return f"{where} leaves a member out twice; expected each once"
        what = sum_of(record, part)
        if not any(each.weight and not each.is_stranger for each in what.inputs):
            return (
                f"{where} counts no token of a member or a keeper; expected one at least: without any there is no mean"
            )
        if not is_signed(check, part.reducer, part.seal, encode_sum(what)):
            return f"{short(part.reducer)} did not sign the result of {where} that the record names"
        if part.reducer not in voters:
            why_not = _why_no_reducer(part.reducer, shown.get(part.reducer, part.credential), check)
            if why_not:
                return f"{short(part.reducer)} summed {where} and {why_not}"
        inputs = {each.peer: each.is_stranger for each in what.inputs}
        unfair = disagreement_problem(part.disagreeing, inputs, part.stop_chunk - part.first_chunk)
        if unfair:
            return f"{where}: {unfair}"
        counted.update(inputs)
    for entry in record.contributors:
        if entry.peer not in counted:
            return f"{short(entry.peer)} is a contributor whom no slice counts"
    return ""


# --- numbers ------------------------------------------------------------------------------------------------------------------


def weight_cap(tokens: Iterable[int], target_tokens: int, factor: int) -> int:
    """`factor` times the median of the members' tokens, the upper one of two, at least 1: one number for all reducers (R10). With
    NO_CAP it is more than anybody's tokens.

    Of two members neither can raise the cap by its own word: it is made of the lower tokens, or of those that the round was due at,
    so that the faster of two honest peers, which brings most of a round, is not cut.
    """
    if factor == NO_CAP:
        return MAX_TOKENS
    ordered = sorted(tokens) or [1]
    if len(ordered) < MANY:
        return factor * max(1, ordered[0], target_tokens)
    return max(1, factor * ordered[len(ordered) // 2])


def trusted_tokens(contributors: Iterable[Contributor]) -> list[int]:
    """The signed tokens from which a record's weight cap follows: those of keepers and members, so that no stranger moves it."""
    return [entry.tokens for entry in contributors if not entry.is_stranger]


def recorded_cap(parent: ChainLink, proposed: int, tokens: Sequence[int]) -> int:
    """The weight cap of a record: the proposed one, or the highest that its signed tokens allow. No weight is changed by that: a sum
    that was made with another weight keeps the proposed cap, and such a record is refused.
    """
    return min(proposed, max([_most_cap(parent, tokens), *tokens]))


def _most_cap(parent: ChainLink, tokens: Sequence[int]) -> int:
    """The highest cap that signed tokens allow. Ready tokens only grow, so the lower ones of two are no fewer than in heartbeats."""
    late = LATE_FACTOR if len(tokens) >= MANY else 1
    return late * weight_cap(tokens, parent.target_tokens, cap_factor_of(parent.rules))


def low_cap_problem(parent: ChainLink, record: CommitRecord, members: Collection[PeerId]) -> str:
    """Why a weight cap is too low; empty where it is not. It would count everybody's work as next to nothing. Only voters ask, of new
    records: what was committed stands.

    Args:
        members: keepers and members that took part, as far as they are known here. A member that the record leaves out whole lowered
            the cap when it was proposed, by as few tokens as it may have had; a peer of which only the leader tells did not.
    """
    return _low_problem(record.weight_cap_tokens, _least_cap(parent, record, members))


def _low_problem(cap_tokens: int, least: int) -> str:
    if cap_tokens < least:
        return f"a weight cap of {cap_tokens} tokens; expected at least {least} by the signed tokens"
    return ""


def _least_cap(parent: ChainLink, record: CommitRecord, members: Collection[PeerId]) -> int:
    left_out = {entry.peer for part in record.slices for entry in part.omitted}.intersection(members)
    left_out.difference_update(entry.peer for entry in record.contributors)
    tokens = [*trusted_tokens(record.contributors), *[1] * len(left_out)]
    return weight_cap(tokens, parent.target_tokens, cap_factor_of(parent.rules)) // LATE_FACTOR


def most_credited(parent: ChainLink) -> int:
    """The most tokens that the commit after `parent` may credit, in all. The credits of fewer than MANY contributors may be the word
    of one alone: they let the next commit credit no more than CREDIT_FACTOR times again.
    """
    entries = parent.record.contributors if parent.record is not None else ()
    before = sum(entry.credited_tokens for entry in entries)
    if len(entries) < MANY:
        before = min(before, CREDIT_FACTOR * parent.target_tokens)
    return CREDIT_FACTOR * max(1, parent.target_tokens, before)


def credits_of(
    contributors: Sequence[Contributor], slices: Sequence[SliceRecord], cap_tokens: int, most_tokens: int
) -> tuple[int, ...]:
    """The credited tokens of each contributor, in their order (R20): floor(weight x counted chunks / all chunks), where no chunk
    counts that disagrees. The weight is min(tokens, cap), and a stranger's is less (stranger_weights.py). If that is more than
    `most_tokens` in all, everybody is credited with the same share of it.
    """
    num_chunks = slices[-1].stop_chunk
    covered: Counter[PeerId] = Counter()
    for part in slices:
        covered.subtract({entry.peer: entry.num_chunks for entry in part.disagreeing})
        left_out = {entry.peer for entry in part.omitted}
        for entry in contributors:
            if entry.peer not in left_out:
                covered[entry.peer] += part.stop_chunk - part.first_chunk
    weights = weights_of([e.tokens for e in contributors], [e.is_stranger for e in contributors], cap_tokens)
    whole = [weight * covered[entry.peer] // num_chunks for entry, weight in zip(contributors, weights, strict=True)]
    total = sum(whole)
    return tuple(whole if total <= most_tokens else [tokens * most_tokens // total for tokens in whole])


def _numbers_problem(parent: ChainLink, record: CommitRecord) -> str:
    most_cap = _most_cap(parent, trusted_tokens(record.contributors))
    if record.weight_cap_tokens > most_cap:
        return f"a weight cap of {record.weight_cap_tokens} tokens; expected at most {most_cap} by the signed tokens"
    expected = credits_of(record.contributors, record.slices, record.weight_cap_tokens, most_credited(parent))
    for entry, tokens in zip(record.contributors, expected, strict=True):
        if entry.credited_tokens != tokens:
            return f"{short(entry.peer)} is credited with {entry.credited_tokens} tokens; expected {tokens}"
    return ""


# --- the next voters ----------------------------------------------------------------------------------------------------------


def fewest_voters(parent: ChainLink, left: Collection[PeerId]) -> int:
    """The fewest voters of the round after next: a commit may drop a part of the roster, and those who said goodbye."""
    standing = sum(1 for peer in parent.roster if peer not in left)
    return standing - len(parent.roster) // KEPT_SHARE


def next_roster(
    parent: ChainLink,
    contributors: Iterable[PeerId],
    alive: Collection[PeerId],
    left: Collection[PeerId],
    others: Collection[PeerId] = (),
    room: int = MAX_MEMBERS,
) -> tuple[PeerId, ...]:
    """The voters of the next round: every contributor, then voters of the parent as far as there is room, those that are alive first,
    then `others` that may be. Dead ones are dropped only as far as the rules allow; the next commits drop the rest. If all
    do not fit and no majority of the parent's voters would be among them, contributors are drawn (turns.py).
    """
    chosen = dict.fromkeys(contributors)
    fewest, counted = fewest_voters(parent, left), list(chosen)
    kept = [peer for peer in parent.roster if peer not in chosen and peer not in left]
    here = [*(peer for peer in kept if peer in alive), *(peer for peer in kept if peer in others and peer not in alive)]
    chosen.update(dict.fromkeys(here[: max(0, room - len(chosen))]))
    if len(counted) + len(here) > room and not keeps_voters(parent, chosen, 1 + len(parent.roster) // 2):
        standing = [peer for peer in parent.roster if peer not in left]
        return roster_by_turns(parent, counted, standing, here, fewest, room)
    missing = fewest - len(chosen)
    chosen.update(dict.fromkeys([peer for peer in kept if peer not in chosen][: max(0, missing)]))
    return tuple(sorted(chosen))


def _roster_problem(parent: ChainLink, record: CommitRecord, left: Collection[PeerId], check: SignatureCheck) -> str:
    roster, contributors = frozenset(record.roster), {entry.peer: entry for entry in record.contributors}
    voters = frozenset(parent.roster)
    eligible = [entry.peer for entry in record.contributors if may_vote_next(voters, entry, check)]
    outsider = next((peer for peer in record.roster if peer not in eligible and peer not in voters), None)
    if outsider is not None:
        why_not = "is no keeper" if outsider in contributors else "neither voted before nor contributed"
        return f"{short(outsider)} is to vote next and {why_not}; expected voters of now and keepers that contributed"
    fewest = fewest_voters(parent, left)
    unfair = turns_problem(parent, record, eligible, left, fewest)
    if unfair:
        return unfair
    if not record.lone and len(roster) < fewest:
        return f"the next roster has {len(roster)} voters of {len(parent.roster)} now; expected at least {fewest}"
    for peer, incarnation in zip(record.roster, record.incarnations, strict=True):
        entry = contributors.get(peer)
        known = entry.incarnation if entry is not None else parent.disks.get(peer, incarnation)
        if incarnation != known:
            return f"{short(peer)} is to vote with disk {incarnation}; expected {known}"
    return ""


# --- state roots --------------------------------------------------------------------------------------------------------------


def attestation_of(attested: Iterable[Attestation]) -> Attestation | None:
    """The (commit, state root) that most contributors computed. Ties go to the lower pair, so that all peers agree (R21)."""
    counts = Counter((each.commit, each.state_root) for each in attested)
    if not counts:
        return None
    commit, root = min(counts, key=lambda pair: (-counts[pair], pair))
    return Attestation(CommitId(commit), root)


def _attestation_problem(record: CommitRecord) -> str:
    named = {entry.attests for entry in record.contributors}
    if len(named) != len(record.attestations) or len(set(record.attestations)) < len(record.attestations):
        return f"{len(record.attestations)} attested states; expected each once, of a contributor"
    expected = attestation_of(record.attestations[entry.attests - 1] for entry in record.contributors)
    if record.attested != expected:
        return "the attested state root is not the one of most contributors"
    return ""
