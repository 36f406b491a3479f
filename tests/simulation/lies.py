"""The writings of liars: pens of keys that lie together, records with one flaw each, and lineages that nobody but they signed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from protocol.identity.envelope import NEVER_MS, seal, seal_of
from protocol.ids import PeerId, Root
from protocol.rounds.lineage.chain_link import ChainLink, link_of
from protocol.rounds.lineage.record_rules import (
    KEPT_SHARE,
    LATE_FACTOR,
    ROUND_DOMAIN,
    claim_of,
    credits_of,
    most_credited,
    sum_of,
    weight_cap,
)
from protocol.rounds.lineage.rule_numbers import (
    CAP_FACTOR,
    NEWEST,
    SIGNED,
    cap_factor_of,
    rules_after,
    rules_with,
    version_of,
)
from protocol.rounds.messages.claim import encode_claim, encode_sum
from protocol.rounds.messages.messages import Ack, Certificate
from protocol.rounds.messages.record import (
    Attestation,
    Ballot,
    CommitRecord,
    Contributor,
    Omission,
    OmissionCode,
    SliceRecord,
)
from protocol.rounds.messages.wire import encode_message, encode_record
from tests.simulation.signing import HashSigner, admission_of

if TYPE_CHECKING:
    from protocol.rounds.state import RoundConfig
    from tests.simulation.swarm import World

HUGE: Final = 1 << 50
"""Tokens that would end any run."""

FORGED: Final = bytes(range(82))
"""A seal that nobody made."""

_SEQUENCES: Final = 1 << 31
"""From this number on in its session a pen signs what the node itself did not say."""


class Pen:
    """One key; what it signs about contributions and sums is known to the world's facts."""

    def __init__(self, world: World, signer: HashSigner) -> None:
        self._world = world
        self._signer = signer
        self._next = _SEQUENCES
        self.peer = signer.peer_id

    def sealed(self, payload: bytes, session: int = 1) -> bytes:
        """An envelope of the round channel."""
        self._next += 1
        self._world.facts.signed.add((self.peer, payload))
        sequence = (session << 32) + self._next
        return seal(self._signer, ROUND_DOMAIN, self._world.run_id, sequence, NEVER_MS, payload)

    def seal(self, payload: bytes) -> bytes:
        """Its seal alone, as a record has it."""
        return seal_of(self.sealed(payload))


@dataclass(frozen=True)
class Gang:
    """Keys that lie together: a member of the run, two more identities that it had admitted, and one that nobody admitted."""

    world: World
    member: Pen
    twins: tuple[Pen, ...]
    stranger: Pen
    chooser: random.Random

    @property
    def pens(self) -> Mapping[PeerId, Pen]:
        """All of them, by peer."""
        return {pen.peer: pen for pen in (self.member, *self.twins, self.stranger)}

    def someone_honest(self, parent: ChainLink) -> PeerId:
        """A voter that is none of them, where there is one."""
        others = [peer for peer in parent.roster if peer not in self.pens]
        return self.chooser.choice(others or [PeerId("nobody")])

    def any_root(self) -> Root:
        """32 bytes that name nothing."""
        return Root(self.chooser.randbytes(32))


def gang_of(world: World, peer: PeerId, signer: HashSigner, chooser: random.Random) -> Gang:
    """A liar and its other keys; the world admits the twins."""
    name = peer.encode()
    twins = tuple(Pen(world, HashSigner(name + b"/twin %d" % number)) for number in range(2))
    world.facts.admitted.update(pen.peer for pen in twins)
    return Gang(world, Pen(world, signer), twins, Pen(world, HashSigner(name + b"/stranger")), chooser)


# --- records --------------------------------------------------------------------------------------------------------------------


def entry_of(pen: Pen, gang: Gang, tokens: int, attests: int = 1) -> Contributor:
    """A contribution that its key signs when the record is resigned."""
    is_admitted = pen is not gang.stranger
    proof = admission_of(pen.peer, gang.world.run_id) if is_admitted else b"of somebody else"
    return Contributor(pen.peer, 1, gang.any_root(), tokens, 0, session=1, attests=attests, credential=proof)


def record_by(
    gang: Gang, parent: ChainLink, config: RoundConfig, pens: Iterable[Pen], *, lone: bool = True
) -> CommitRecord:
    """A record of these keys alone that keeps all rules, not signed yet."""
    entries = tuple(entry_of(pen, gang, parent.target_tokens) for pen in sorted(pens, key=lambda pen: pen.peer))
    roster = tuple(entry.peer for entry in entries)
    pair = Attestation(parent.commit, gang.any_root())
    part = SliceRecord(0, config.num_chunks, gang.member.peer, gang.any_root(), ())
    record = CommitRecord(
        parent.unit,
        parent.commit,
        parent.index + 1,
        Ballot(gang.chooser.randint(1, 9), gang.member.peer),
        (part,),
        entries,
        config.codec,
        weight_cap((entry.tokens for entry in entries), parent.target_tokens, cap_factor_of(parent.rules)),
        parent.total_tokens,
        config.outer,
        parent.target_tokens,
        roster,
        (1,) * len(roster),
        pair,
        lone,
        result_codec=config.result_codec,
        rules=rules_after(parent.rules, in_turns=False),
        attestations=(pair,),
    )
    return credited(record, parent)


def credited(record: CommitRecord, parent: ChainLink) -> CommitRecord:
    """With the credits that follow from its contributors, and their total."""
    tokens = credits_of(record.contributors, record.slices, record.weight_cap_tokens, most_credited(parent))
    entries = (replace(each, credited_tokens=n) for each, n in zip(record.contributors, tokens, strict=True))
    return totalled(replace(record, contributors=tuple(entries)), parent)


def totalled(record: CommitRecord, parent: ChainLink) -> CommitRecord:
    """With the total that its credits make."""
    total = parent.total_tokens + sum(entry.credited_tokens for entry in record.contributors)
    return replace(record, total_tokens=total)


def resigned(record: CommitRecord, gang: Gang, *, claims: bool = True) -> CommitRecord:
    """With the seals of the gang on what the record says of its keys, or of its sums alone; of others it has what it had. A record
    without signatures stays so.
    """
    if not record.rules:
        return record
    pens = gang.pens
    entries = (
        record.contributors
        if not claims
        else tuple(
            replace(each, seal=pens[each.peer].seal(encode_claim(claim_of(record, each))))
            if each.peer in pens
            else each
            for each in record.contributors
        )
    )
    record = replace(record, contributors=entries)
    parts = tuple(
        replace(part, seal=pens[part.reducer].seal(encode_sum(sum_of(record, part)))) if part.reducer in pens else part
        for part in record.slices
    )
    return replace(record, slices=parts)


def certificate_of(gang: Gang, record: CommitRecord) -> Certificate:
    """With the acks of all of the gang that vote on it."""
    raw = encode_record(record)
    ack = encode_message(Ack(record.unit, record.parent, record.ballot, link_of(raw).commit, record.lone, version=1))
    return Certificate(raw, tuple(pen.sealed(ack) for _, pen in sorted(gang.pens.items())))


# --- one flaw each --------------------------------------------------------------------------------------------------------------

Flaw = Callable[[CommitRecord, ChainLink, Gang], CommitRecord]


def with_entry(record: CommitRecord, parent: ChainLink, entry: Contributor, *, votes: bool = True) -> CommitRecord:
    """One more contributor, which is credited, and which votes next."""
    entries = tuple(sorted((*record.contributors, entry), key=lambda each: each.peer))
    disks = dict(zip(record.roster, record.incarnations, strict=True))
    if votes:
        disks[entry.peer] = entry.incarnation
    roster = tuple(sorted(disks))
    changed = replace(record, contributors=entries, roster=roster, incarnations=tuple(disks[peer] for peer in roster))
    return credited(changed, parent)


def no_signatures(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    """As a release would write it that knows no signatures."""
    entries = tuple(replace(entry, seal=b"", attests=0) for entry in record.contributors)
    return replace(record, rules=0, contributors=entries, attestations=())


def work_of_others(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    """A contribution that its peer never made; being lone it has no vote of it."""
    peer = gang.someone_honest(parent)
    if record.contributor(peer) is not None:
        return record
    entry = Contributor(peer, 1, gang.any_root(), parent.target_tokens, 0, session=1, seal=FORGED, attests=1)
    return with_entry(record, parent, entry, votes=False)


def work_of_a_stranger(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    """It has no vote, so nothing but the check of admissions finds it."""
    return with_entry(record, parent, entry_of(gang.stranger, gang, parent.target_tokens), votes=False)


def a_sum_of_others(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    first, *rest = record.slices
    return replace(record, slices=(replace(first, reducer=gang.someone_honest(parent), seal=FORGED), *rest))


def a_sum_of_a_stranger(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    first, *rest = record.slices
    return replace(record, slices=(replace(first, reducer=gang.stranger.peer, credential=b"of somebody else"), *rest))


def a_high_cap(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    most = CAP_FACTOR * LATE_FACTOR * max(entry.tokens for entry in record.contributors)
    return replace(record, weight_cap_tokens=1000 * most)


def other_credits(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    """More than the run allows a round where it has the tokens for it, and less for others."""
    me = gang.member.peer
    entries = tuple(
        replace(entry, credited_tokens=entry.tokens if entry.peer == me else entry.credited_tokens // 2)
        for entry in (replace(each, tokens=HUGE) if each.peer == me else each for each in record.contributors)
    )
    return totalled(replace(record, contributors=entries, weight_cap_tokens=HUGE), parent)


def a_stranger_votes(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    disks = {**dict(zip(record.roster, record.incarnations, strict=True)), gang.stranger.peer: 1}
    return replace(record, roster=tuple(sorted(disks)), incarnations=tuple(disks[peer] for peer in sorted(disks)))


def a_contributor_is_dropped(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    return with_entry(record, parent, entry_of(gang.twins[0], gang, parent.target_tokens), votes=False)


def another_disk(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    return replace(record, incarnations=(*record.incarnations[:-1], record.incarnations[-1] + 1))


def another_state(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    return replace(record, attested=Attestation(parent.commit, gang.any_root()))


def free_words(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    first, *rest = record.slices
    words = Omission(gang.someone_honest(parent), f"word {gang.chooser.random()}")
    return replace(record, slices=(replace(first, omitted=(words,)), *rest))


def nothing_of_it_counted(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    twin = entry_of(gang.twins[0], gang, parent.target_tokens)
    omitted = Omission(twin.peer, "", OmissionCode.LATE)
    parts = tuple(replace(part, omitted=(*part.omitted, omitted)) for part in record.slices)
    return with_entry(replace(record, slices=parts), parent, twin)


def older_rules(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    """As a release would write it that counts every goodbye."""
    return replace(record, rules=SIGNED)


def rules_of_nobody(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    return replace(record, rules=NEWEST + 1)


def another_cap_of_the_run(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    return replace(record, rules=rules_with(version_of(record.rules), CAP_FACTOR + 1))


def it_attests_nothing(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    me = gang.member.peer
    entries = (replace(entry, attests=0) if entry.peer == me else entry for entry in record.contributors)
    return replace(record, contributors=tuple(entries))


def a_state_of_nobody(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    unused = Attestation(parent.commit, gang.any_root())
    return replace(record, attestations=(*record.attestations, unused))


def left_out_twice(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    first, *rest = record.slices
    late = Omission(gang.someone_honest(parent), "", OmissionCode.LATE)
    return replace(record, slices=(replace(first, omitted=(late, late)), *rest))


def a_slice_of_nobody(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    """Its last chunk counts nobody."""
    *before, last = record.slices
    if last.stop_chunk - last.first_chunk < 2:
        return record
    cut = last.stop_chunk - 1
    late = tuple(Omission(entry.peer, "", OmissionCode.LATE) for entry in record.contributors)
    empty = replace(last, first_chunk=cut, omitted=late, result_hash=gang.any_root())
    return credited(replace(record, slices=(*before, replace(last, stop_chunk=cut), empty)), parent)


LONE_FLAWS: Final[dict[str, Flaw]] = {
    flaw.__name__: flaw
    for flaw in (
        no_signatures,
        work_of_others,
        work_of_a_stranger,
        a_sum_of_others,
        a_sum_of_a_stranger,
        a_high_cap,
        other_credits,
        a_stranger_votes,
        a_contributor_is_dropped,
        another_disk,
        another_state,
        free_words,
        nothing_of_it_counted,
        older_rules,
        rules_of_nobody,
        another_cap_of_the_run,
        it_attests_nothing,
        a_state_of_nobody,
        left_out_twice,
        a_slice_of_nobody,
    )
}

SHRINKS: Final = "voters_are_dropped"
"""A second commit, whose roster is a third of the first one's."""

UNCLAIMED: Final = "more_than_it_claimed"
"""A record that counts more tokens than its own contributor signed."""

NO_FLAW: Final = "none"


def lone_lineage(gang: Gang, parent: ChainLink, config: RoundConfig, flaw: str) -> list[Certificate]:
    """A few commits that nobody but the gang signed, the first with this flaw."""
    if flaw == SHRINKS:
        pens = (gang.member, *gang.twins)
        first = resigned(record_by(gang, parent, config, pens), gang)
        base = link_of(encode_record(first))
        few = resigned(record_by(gang, base, config, (gang.member,), lone=False), gang)
        return [certificate_of(gang, first), certificate_of(gang, few)]
    record = record_by(gang, parent, config, (gang.member,))
    if flaw == UNCLAIMED:
        (mine,) = resigned(record, gang).contributors
        more = replace(record, contributors=(replace(mine, tokens=mine.tokens + 1),))
        record = resigned(credited(more, parent), gang, claims=False)
    elif flaw != NO_FLAW:
        record = resigned(LONE_FLAWS[flaw](record, parent, gang), gang)
    else:
        record = resigned(record, gang)
    made = [record]
    for _ in range(gang.chooser.randint(0, 2)):
        base = link_of(encode_record(made[-1]))
        made.append(resigned(record_by(gang, base, config, (gang.member,), lone=False), gang))
    return [certificate_of(gang, each) for each in made]


# --- records of a leader --------------------------------------------------------------------------------------------------------


def alone_in_the_roster(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    return replace(record, roster=(gang.member.peer,), incarnations=(1,))


def counts_itself_alone(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    me = gang.member.peer
    if record.contributor(me) is None:
        return record
    late = tuple(Omission(entry.peer, "", OmissionCode.LATE) for entry in record.contributors if entry.peer != me)
    entries = tuple(replace(entry, attests=1) for entry in record.contributors if entry.peer == me)
    slices = tuple(replace(part, omitted=late) for part in record.slices)
    return credited(replace(record, slices=slices, contributors=entries, attestations=record.attestations[:1]), parent)


def other_tokens_of_others(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    me = gang.member.peer
    entries = (entry if entry.peer == me else replace(entry, tokens=1) for entry in record.contributors)
    return credited(replace(record, contributors=tuple(entries)), parent)


def other_bytes(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    first, *rest = record.slices
    return replace(record, slices=(replace(first, result_hash=gang.any_root()), *rest))


def reducers_swapped(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    reducers = [part.reducer for part in record.slices]
    swapped = zip(record.slices, [*reducers[1:], reducers[0]], strict=True)
    return replace(record, slices=tuple(replace(part, reducer=reducer) for part, reducer in swapped))


def one_is_dropped(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    gone = gang.someone_honest(parent)
    disks = {p: disk for p, disk in zip(record.roster, record.incarnations, strict=True) if p != gone}
    if not disks:
        return record
    return replace(record, roster=tuple(disks), incarnations=tuple(disks.values()))


def several_are_dropped(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    """As many as may go, of those that are not counted."""
    idle = [peer for peer in record.roster if record.contributor(peer) is None and peer not in gang.pens]
    gone = idle[: len(parent.roster) // KEPT_SHARE]
    disks = {p: disk for p, disk in zip(record.roster, record.incarnations, strict=True) if p not in gone}
    return replace(record, roster=tuple(disks), incarnations=tuple(disks.values()))


def more_tokens(record: CommitRecord, parent: ChainLink, gang: Gang) -> CommitRecord:
    return replace(record, next_target_tokens=record.next_target_tokens * 1000)


LEADER_FLAWS: Final[dict[str, Flaw]] = {
    flaw.__name__: flaw
    for flaw in (
        no_signatures,
        a_high_cap,
        other_credits,
        a_stranger_votes,
        another_disk,
        another_state,
        free_words,
        nothing_of_it_counted,
        alone_in_the_roster,
        counts_itself_alone,
        other_tokens_of_others,
        other_bytes,
        reducers_swapped,
        one_is_dropped,
        several_are_dropped,
        a_sum_of_a_stranger,
        more_tokens,
        older_rules,
        a_state_of_nobody,
    )
}
