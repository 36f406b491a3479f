from __future__ import annotations

from dataclasses import replace

from peer.session.restart_report import restart_sentence, restored, units_sentence
from protocol.ids import PeerId, UnitName
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import CommitTree, tree_of
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.wire import encode_record
from tests.protocol.rounds.made_commits import record_on
from tests.protocol.rounds.round_table import TARGET_TOKENS, Table

GENESIS = Table(1).genesis
UNPROVEN = Certificate(b"", ())
FOUR = tuple(PeerId(f"peer{i}") for i in range(4))


def _child(parent: ChainLink, salt: int = 0, *, rounds: int = 1) -> ChainLink:
    return link_after(parent, encode_record(record_on(parent, FOUR, tokens=rounds * TARGET_TOKENS, salt=salt)))


def _chain(parent: ChainLink, length: int, salt: int = 0) -> list[ChainLink]:
    links: list[ChainLink] = []
    for _ in range(length):
        links.append(_child(links[-1] if links else parent, salt))
    return links


def _tree(*links: ChainLink) -> CommitTree:
    tree = tree_of(GENESIS)
    for link in links:
        tree = tree.add(link, UNPROVEN)
    return tree


def test_a_peer_whose_disk_has_all_that_it_has_certificates_of_lost_nothing() -> None:
    links = _chain(GENESIS, 12)
    reported = restart_sentence(restored(_tree(*links), links[-1].commit))
    assert reported == "restarted at round 12; nothing was lost but steps that no round had counted"


def test_certificates_beyond_the_newest_state_name_the_rounds_that_others_must_bring() -> None:
    links = _chain(GENESIS, 14)
    reported = restart_sentence(restored(_tree(*links), links[11].commit))
    assert "work since round 12 was lost here" in reported
    assert "rounds up to 14" in reported


def test_the_rounds_of_a_lineage_that_was_left_for_a_better_one_are_no_loss() -> None:
    trunk = _chain(GENESIS, 2)
    left, followed = _chain(trunk[-1], 3, salt=1), _child(trunk[-1], 2, rounds=9)
    reported = restart_sentence(restored(_tree(*trunk, *left, followed), followed.commit))
    assert reported.startswith("restarted at round 3; nothing was lost")


def test_the_same_rounds_made_again_as_other_commits_are_told_as_a_fork() -> None:
    trunk = _chain(GENESIS, 2)
    lost, again = _chain(trunk[-1], 9, salt=1), _chain(trunk[-1], 2, salt=2)
    reported = restart_sentence(restored(_tree(*trunk, *lost, *again), again[-1].commit))
    assert reported.startswith(
        "restarted at round 4; other commits after round 2 are better, and the 9 rounds of theirs were lost"
    )


def test_damaged_generations_are_named_with_what_was_taken_instead() -> None:
    links = _chain(GENESIS, 3)
    tree, head = _tree(*links), links[-1].commit
    reported = restart_sentence(restored(tree, head, num_damaged=1, generation_index=2))
    assert reported.endswith("; 1 damaged generation was skipped in favour of the one of round 2")
    reported = restart_sentence(restored(tree, head, num_damaged=2))
    assert reported.endswith("; 2 damaged generations were skipped in favour of the start state")


def test_of_several_units_every_loss_and_damage_is_told_and_the_spine_always() -> None:
    links = _chain(GENESIS, 4)
    whole = restored(_tree(*links), links[-1].commit)
    behind = restored(_tree(*links), links[1].commit)
    damaged = replace(whole, num_damaged=1, generation_index=3)
    spine, *others = (UnitName(f"fragment-{number}") for number in range(4))
    assert units_sentence({spine: whole, others[0]: whole}) == restart_sentence(whole)
    reported = units_sentence({spine: whole, others[0]: behind, others[1]: damaged, others[2]: None})
    assert reported.startswith(restart_sentence(whole))
    assert f"; fragment-1 {restart_sentence(behind)}" in reported
    assert f"; fragment-2 {restart_sentence(damaged)}" in reported
    assert "; nothing of fragment-3 was here" in reported
    assert units_sentence({spine: None, others[0]: whole}).startswith("nothing of fragment-0 was here")
