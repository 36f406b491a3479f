"""Each check of the simulation fails on what a broken swarm would show: commits as they may come, and stories with a broken part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from averaging.codecs import codec_by_name
from averaging.rounds.traffic.contribution import result_root, split_chunks
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds import following
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import NO_SPINE, SliceRecord
from protocol.rounds.messages.wire import encode_record
from protocol.rounds.state import RoundStep
from protocol.tensors.tensor_schema import ChunkGrid
from tests.protocol.rounds.made_commits import record_on
from tests.protocol.rounds.round_table import NUM_CHUNKS, TARGET_TOKENS, UNIT
from tests.simulation.accounting import LIFE_TOKENS
from tests.simulation.invariants import KnownCommit, Observed, Violation, check_applied_bytes
from tests.simulation.node import Node
from tests.simulation.profiles import PROFILES, Profile
from tests.simulation.stories import Options, simulate

PEERS = tuple(sorted(map(PeerId, ("one", "two", "three"))))
ONE = PEERS[0]
START = ChainLink(UNIT, CommitId(b"0" * 32), 0, PEERS, 0, TARGET_TOKENS)
FOLLOWED, LEFT = CommitId(b"f" * 32), CommitId(b"l" * 32)
THREE_PEERS = Options(peers=3)


def _commit(
    observed: Observed,
    parent: ChainLink,
    salt: int,
    *,
    first: int | None = None,
    tokens: int = TARGET_TOKENS,
    roster: Sequence[PeerId] = PEERS,
    lone: bool = False,
    spine: CommitId = NO_SPINE,
) -> ChainLink:
    """A commit that counts `tokens` of the first of its roster from `first` on; where None, tokens that no other `salt` has."""
    record = record_on(parent, roster, tokens=tokens, lone=lone, salt=salt, spine=spine)
    begin = salt * 1_000_000 if first is None else first
    observed.claim(roster[0], parent.commit, record.contributors[0].root, [(begin, begin + tokens)])
    return link_after(parent, encode_record(record))


def _seen(observed: Observed, *links: ChainLink) -> ChainLink:
    """Somebody stands on this chain; returns its head."""
    observed.add([START, *links])
    return links[-1]


def _is_there(known: KnownCommit) -> bool:
    return True


# --- commits ------------------------------------------------------------------------------------------------------------------


def test_two_commits_of_a_quorum_on_one_base_are_found_and_lone_ones_beside_one_are_not() -> None:
    observed = Observed()
    _seen(observed, _commit(observed, START, 1))
    _seen(observed, _commit(observed, START, 2, lone=True))
    _seen(observed, _commit(observed, START, 3, lone=True))
    with pytest.raises(Violation, match="two commits of a quorum on one base"):
        _seen(observed, _commit(observed, START, 4))


def test_a_vote_on_the_start_with_another_disk_than_the_first_is_found() -> None:
    observed = Observed(start=START.commit)
    observed.check_vote(ONE, START.commit, 1)
    with pytest.raises(Violation, match="with a disk that its roster does not name"):
        observed.check_vote(ONE, START.commit, 2)


def test_two_states_of_one_commit_are_found_and_a_damaged_one_is_not_asked() -> None:
    observed = Observed()
    head = _commit(observed, START, 1)
    observed.hold([START, head], head.commit, Root(b"a" * 32))
    observed.hold([START, head], head.commit, None)
    with pytest.raises(Violation, match="has two states"):
        observed.hold([START, head], head.commit, Root(b"b" * 32))


def test_a_contribution_that_two_commits_of_a_lineage_count_is_found_and_on_two_lineages_it_is_not() -> None:
    observed = Observed()
    first = _commit(observed, START, 1)
    between = _commit(observed, first, 2)
    beside = _commit(observed, START, 3, lone=True)
    _seen(observed, first, between)
    _seen(observed, beside, _commit(observed, beside, 1, first=5_000_000))
    with pytest.raises(Violation, match="a contribution was applied twice"):
        _seen(observed, first, between, _commit(observed, between, 1, first=6_000_000))


@pytest.mark.parametrize("life", [0, LIFE_TOKENS], ids=["in one life", "in the next life"])
def test_data_that_two_commits_of_a_lineage_count_is_found(life: int) -> None:
    observed = Observed()
    first = _commit(observed, START, 1, first=0)
    between = _commit(observed, first, 2, first=TARGET_TOKENS)
    _seen(observed, first, between)
    with pytest.raises(Violation, match="tokens were counted twice"):
        _seen(observed, first, between, _commit(observed, between, 3, first=life + TARGET_TOKENS // 2))


def test_of_two_processes_of_one_peer_only_the_same_tokens_count_as_twice() -> None:
    observed = Observed(had_two={ONE})
    first = _commit(observed, START, 1, first=0)
    _seen(observed, first, _commit(observed, first, 2, first=LIFE_TOKENS))
    with pytest.raises(Violation, match="tokens were counted twice"):
        _seen(observed, first, _commit(observed, first, 3, first=0, lone=True))


# --- bytes --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [lambda blob: bytes([blob[0] ^ 1]) + blob[1:], lambda blob: None])
def test_bytes_that_a_record_does_not_name_are_found(damage: Callable[[bytes], bytes | None]) -> None:
    grid, codec = ChunkGrid(NUM_CHUNKS * 4, 4), codec_by_name("fp32")
    blob = codec.encode(torch.arange(grid.num_elements, dtype=torch.float32))
    root = result_root(split_chunks(blob, codec, grid, 0, NUM_CHUNKS))
    record = replace(record_on(START, PEERS), slices=(SliceRecord(0, NUM_CHUNKS, ONE, root, ()),))
    check_applied_bytes(record, [blob], codec, grid)
    with pytest.raises(Violation, match="applied with other bytes than named"):
        check_applied_bytes(record, [damage(blob)], codec, grid)


# --- lineages -----------------------------------------------------------------------------------------------------------------


def _check_preferred(observed: Observed, better: ChainLink, worse: ChainLink) -> None:
    observed.check_preferred(better.commit, TARGET_TOKENS, _is_there)
    with pytest.raises(Violation, match="is preferred beside it"):
        observed.check_preferred(worse.commit, TARGET_TOKENS, _is_there)
    gone = worse.commit, better.commit
    observed.check_preferred(
        worse.commit, TARGET_TOKENS, lambda known: known.parent not in gone and _is_on(known, worse)
    )


def _is_on(known: KnownCommit, head: ChainLink) -> bool:
    return known.record == head.record


def test_a_lineage_that_is_kept_beside_one_of_more_rounds_is_found_however_many_tokens_it_names() -> None:
    observed = Observed(founders=PEERS)
    links = [_commit(observed, START, 1, lone=True)]
    for salt in (2, 3, 4):
        links.append(_commit(observed, links[-1], salt))
    better = _seen(observed, *links)
    worse = _seen(observed, _commit(observed, START, 5, tokens=1 << 40, lone=True))
    _check_preferred(observed, better, worse)


def test_a_lone_commit_that_is_kept_beside_one_of_a_quorum_is_found_whatever_the_work_after_it() -> None:
    observed = Observed(founders=PEERS)
    better = _seen(observed, _commit(observed, START, 1))
    links = [_commit(observed, START, 2, lone=True)]
    for salt in (3, 4, 5):
        links.append(_commit(observed, links[-1], salt))
    _check_preferred(observed, better, _seen(observed, *links))


def test_a_lone_commit_that_is_kept_beside_one_of_more_voters_is_found_whatever_the_work_after_it() -> None:
    observed = Observed(founders=PEERS)
    links = [_commit(observed, START, 1, lone=True, roster=PEERS[:1])]
    for salt in (3, 4, 5):
        links.append(_commit(observed, links[-1], salt))
    better = _seen(observed, _commit(observed, START, 2, lone=True, roster=PEERS[:2]))
    _check_preferred(observed, better, _seen(observed, *links))


def test_of_two_lone_commits_of_as_many_voters_the_one_of_fewer_peers_is_not_kept() -> None:
    observed = Observed(founders=PEERS[1:])
    better = _seen(observed, _commit(observed, START, 1, lone=True, roster=PEERS[:2]))
    _check_preferred(observed, better, _seen(observed, _commit(observed, START, 2, lone=True, roster=PEERS[:1])))


def test_of_two_equal_lineages_the_one_of_the_higher_id_is_not_kept() -> None:
    observed = Observed()
    links = [_seen(observed, _commit(observed, START, salt, lone=True)) for salt in (1, 2)]
    better, worse = sorted(links, key=lambda link: link.commit)
    _check_preferred(observed, better, worse)


def test_a_branch_that_is_kept_beside_one_that_stands_with_the_followed_spine_is_found() -> None:
    observed = Observed()
    pure = _seen(observed, _commit(observed, START, 1, spine=FOLLOWED))
    first = _commit(observed, START, 2, spine=FOLLOWED, lone=True)
    other = _seen(observed, first, _commit(observed, first, 3, spine=LEFT))
    observed.check_stands_with(pure.commit, {FOLLOWED}, _is_there)
    observed.check_stands_with(other.commit, {FOLLOWED}, lambda known: known.record != pure.record)
    with pytest.raises(Violation, match="a branch beside it stands with the followed spine"):
        observed.check_stands_with(other.commit, {FOLLOWED}, _is_there)


# --- stories ------------------------------------------------------------------------------------------------------------------


def _only(kind: str, **changed: object) -> Profile:
    few = {"num_faults": (1, 1), "spread_s": 5.0, "min_rounds": 3, "converge_s": 30.0}
    return replace(PROFILES["calm"], **{"weights": {kind: 1}, **few, **changed})  # type: ignore[arg-type]


def test_who_never_comes_to_the_head_of_the_others_is_found_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(state: Any, *_: object) -> RoundStep:
        return RoundStep(state, remark="commits are not followed")

    monkeypatch.setattr(following, "commits_fetched", deaf)
    assert "agreement did not happen" in simulate(0, _only("join", spread_s=30.0), THREE_PEERS).error


def test_a_state_that_is_another_one_at_one_peer_is_found_where_nobody_knows_of_the_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Node.rot

    def rot(self: Node, chooser: Random) -> None:
        real(self, chooser)
        self.is_rotten = False

    monkeypatch.setattr(Node, "rot", rot)
    assert "has two states" in simulate(0, _only("bit rot"), THREE_PEERS).error
