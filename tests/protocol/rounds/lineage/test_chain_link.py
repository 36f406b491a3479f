from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain_link import genesis_link, light_link_of, lightened, link_of
from protocol.rounds.lineage.rule_numbers import NEW_RUNS
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import commit_id, encode_body, encode_record
from tests.protocol.rounds.made_commits import record_on, signed_record
from tests.protocol.rounds.round_table import RUN_ID, TARGET_TOKENS, UNIT, Table

ROSTER = (PeerId("alice"), PeerId("bob"))


def _start(rules: int = 0, incarnations: tuple[int, ...] = ()) -> bytes:
    unit = StartUnit(UNIT, bytes(32), Root(bytes(32)))
    return encode_body(StartRecord(RUN_ID, (unit,), ROSTER, TARGET_TOKENS, 0, incarnations, rules))


def test_the_start_record_says_who_votes_first_with_which_disk_and_what_records_must_be_signed_for() -> None:
    link = genesis_link(_start(1, (3, 4)), UNIT)
    assert (link.index, link.roster, link.total_tokens, link.target_tokens) == (0, ROSTER, 0, TARGET_TOKENS)
    assert (link.rules, dict(link.disks)) == (1, {"alice": 3, "bob": 4})
    assert link.parent is None
    assert not link.is_lone


def test_the_start_record_of_an_older_host_names_no_disks_and_asks_for_no_signatures() -> None:
    link = genesis_link(_start(), UNIT)
    assert (link.rules, dict(link.disks)) == (0, {})
    assert link.may_vote(ROSTER[0], 99)


def test_the_link_of_a_record_hands_on_its_voters_their_disks_and_its_rules() -> None:
    table = Table(3)
    record = signed_record(table.genesis, table.live())
    link = link_of(encode_record(record))
    assert link.commit == commit_id(table.genesis.commit, encode_record(record))
    assert (link.parent, link.index, link.roster) == (table.genesis.commit, 1, record.roster)
    assert (link.total_tokens, link.target_tokens) == (record.total_tokens, record.next_target_tokens)
    assert link.rules == NEW_RUNS
    (peer, *_) = record.roster
    assert link.may_vote(peer, 1)
    assert not link.may_vote(peer, 2), "a newer disk does not know what its peer voted"


@pytest.mark.parametrize("lone", [True, False])
def test_a_link_is_lone_where_its_record_is(lone: bool) -> None:
    record: CommitRecord = record_on(Table(3).genesis, ROSTER, lone=lone)
    assert link_of(encode_record(record)).is_lone is lone


def test_a_light_link_says_all_that_the_whole_one_says() -> None:
    table = Table(3)
    raw = encode_record(signed_record(table.genesis, table.live()))
    whole = link_of(raw)
    for light in (light_link_of(raw), lightened(whole, raw)):
        assert light.is_light
        assert not whole.is_light
        assert light == whole
        assert light.record == whole.record
        for name in ("unit", "index", "parent", "roster", "total_tokens", "target_tokens", "rules", "disks", "is_lone"):
            assert getattr(light, name) == getattr(whole, name), name
        assert (light.spine, light.cap_tokens, light.agreed) == (whole.spine, whole.cap_tokens, whole.agreed)
        assert list(light.credited) == list(whole.credited) == [100, 100, 100]
    assert lightened(table.genesis, b"") is table.genesis


@pytest.mark.parametrize("num_differing", [0, 1, 2])
def test_a_light_link_attests_a_state_where_the_whole_one_does(num_differing: int) -> None:
    table = Table(3)
    record = signed_record(table.genesis, table.live())
    (pair,) = record.attestations
    others = tuple(replace(pair, state_root=Root(bytes([n]) * 32)) for n in range(num_differing))
    contributors = tuple(
        replace(entry, attests=min(place, num_differing) + 1) for place, entry in enumerate(record.contributors)
    )
    raw = encode_record(replace(record, attestations=(pair, *others), contributors=contributors, attested=pair))
    assert light_link_of(raw).agreed == link_of(raw).agreed
    assert (link_of(raw).agreed is None) == (num_differing > 0)
    assert light_link_of(encode_record(replace(record, attested=None))).agreed is None


def test_links_with_the_same_voters_share_them_in_memory() -> None:
    table = Table(3)
    first = signed_record(table.genesis, table.live())
    second = signed_record(link_of(encode_record(first)), table.live())
    one, two = light_link_of(encode_record(first)), link_of(encode_record(second))
    assert one.roster is two.roster
    assert one.disks is two.disks


def test_what_is_no_record_makes_no_link() -> None:
    for wrong in (b"no record", CommitId(b"")):
        with pytest.raises(RemoteProtocolError):
            link_of(wrong)
        with pytest.raises(RemoteProtocolError):
            light_link_of(wrong)
