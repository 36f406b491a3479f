from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing
from structlog.testing import capture_logs

from coordinator.history.certificate_archive import read_archive
from coordinator.history.history_rows import begins_at, past_blocks
from coordinator.ledger.ledger import Ledger
from protocol.errors import StorageError
from protocol.identity.revocation import fingerprint
from protocol.ids import Root, UnitName
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.messages.wire import decode_certificate
from tests.coordinator.chain_world import RUN_ID, UNIT, VERIFIER, Chain
from tests.coordinator.history.history_world import EVERY, HistoryWorld, make_small, open_history
from tests.coordinator.progress.test_chain_log import grown

Clock = trio.testing.MockClock


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def _verified(world: HistoryWorld) -> int:
    """The round up to which the archive and the ledger prove the run from its start on."""
    blocks = past_blocks(world.ledger, UNIT)
    raws = [raw for block in blocks for raw in read_archive(world.folder / "archive" / block.file, block.sha256)]
    link = world.log.genesis
    for raw in (*raws, *(row.certificate for row in world.ledger.commits(UNIT))):
        link = verify_certificate(decode_certificate(raw), link, verifier=VERIFIER, run_id=RUN_ID)
    return link.index


async def test_milestones_are_signed_as_the_run_goes_on_and_say_what_the_ledger_says(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    chain = Chain()
    for _ in range(3):
        chain.commit()
    chain.commit()
    fourth = chain.head[0]
    chain.commit(attested=(fourth, Root(b"x" * 32)))
    chain.commit()
    with open_history(tmp_path, chain) as world:
        await world.history.restore()
        await world.history.look(None)
        assert world.history.newest() == ()
        world.take(chain, chain.certificates[:5])
        await world.look()
        assert world.history.newest() == (), "it is not settled"
        world.take(chain, chain.certificates[5:])
        await world.look()
        (sealed,) = world.history.newest()
        milestone = world.opened(sealed)
        assert (milestone.link.commit, milestone.link.index, milestone.state_root) == (fourth, 4, Root(b"x" * 32))
        grown(chain, 4)
        world.take(chain, chain.certificates[6:])
        await world.look()
        assert world.indices(world.history.newest()) == [8]


async def test_a_peer_gets_the_newest_milestone_of_its_units_unless_it_names_it(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    chain = grown(Chain(), 10)
    with open_history(tmp_path, chain) as world:
        world.take(chain)
        await world.look()
        history, (sealed,) = world.history, world.history.newest()
        assert history.lacking(b"", [UNIT, UNIT]) == (sealed,)
        assert history.lacking(bytes(8), [UNIT]) == (sealed,)
        assert history.lacking(bytes(8) + fingerprint(sealed), [UNIT]) == ()
        assert history.lacking(b"", [UnitName("expert-1")]) == ()


async def test_after_a_restart_nothing_is_signed_twice(tmp_path: Path, autojump_clock: Clock) -> None:
    chain = grown(Chain(), 10)
    with open_history(tmp_path, chain) as world:
        world.take(chain)
        await world.look()
        before = world.history.newest()
    with open_history(tmp_path, chain) as world:
        await world.history.restore()
        assert world.history.newest() == before
        world.log.replay(world.ledger.commits(UNIT))
        with capture_logs() as logs:
            await world.look()
        assert [line["event"] for line in logs] == []


async def test_old_commits_move_to_the_archive_which_proves_the_run_from_its_start_on(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    chain = grown(Chain(), 30)
    with open_history(tmp_path, chain) as world:
        await world.history.restore()
        for number, raw in enumerate(chain.certificates):
            world.take(chain, [raw])
            await world.look(2)
            assert len(world.ledger.commits(UNIT)) <= 8 + EVERY, number
        first = world.ledger.commits(UNIT)[0]
        assert (first.index, first.commit) == (20, begins_at(world.ledger, UNIT))
        rounds = [each for block in past_blocks(world.ledger, UNIT) for each in block.rounds]
        assert [each.index for each in rounds] == list(range(1, 20))
        assert [each.commit for each in rounds] == [commit for commit, _, _ in chain.commits[:19]]
        assert [each.total_tokens for each in rounds] == [tokens for _, _, tokens in chain.commits[:19]]
        assert (rounds[4].train, rounds[4].heldout, rounds[4].num_members) == (5.0, None, 3)
        assert _verified(world) == 30
    with open_history(tmp_path, chain) as world:
        await world.history.restore()
        world.log.replay(world.ledger.commits(UNIT), begins_at(world.ledger, UNIT))
        assert world.log.head.commit == chain.head[0]
        more = grown(chain.clone(), 8)
        world.take(more, more.certificates[30:])
        await world.look(3)
        assert _verified(world) == 38
        assert world.ledger.commits(UNIT)[0].index == 28


async def test_a_long_ledger_of_an_older_release_is_archived_block_by_block(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    chain = grown(Chain(), 40)
    with open_history(tmp_path, chain) as world:
        world.take(chain)
        await world.history.restore()
        await world.look()
        assert world.indices(world.history.newest()) == [36]
        assert world.ledger.commits(UNIT)[0].index == 4
        await world.look(20)
        assert world.ledger.commits(UNIT)[0].index == 32
        assert _verified(world) == 40


async def test_commits_of_lineages_that_were_left_are_archived_too(tmp_path: Path, autojump_clock: Clock) -> None:
    trunk = grown(Chain(), 2)
    chain, left = grown(trunk.clone(), 20), grown(trunk.clone(), 2, tokens=1)
    with open_history(tmp_path, chain) as world:
        world.take(trunk)
        world.take(left, left.certificates[2:])
        world.take(chain, chain.certificates[2:])
        await world.history.restore()
        await world.look(9)
        (first, *_) = past_blocks(world.ledger, UNIT)
        assert [each.index for each in first.rounds] == [1, 2, 3]
        archived = read_archive(tmp_path / "archive" / first.file, first.sha256)
        assert set(archived) == {*chain.certificates[:3], left.certificates[2]}
        assert {row.commit for row in world.ledger.commits(UNIT)} == {commit for commit, _, _ in chain.commits[11:]}


async def test_a_disk_that_refuses_is_told_once_and_tried_again(
    tmp_path: Path, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = grown(Chain(), 20)
    with open_history(tmp_path, chain) as world:
        world.take(chain)
        await world.history.restore()
        (tmp_path / "archive").write_bytes(b"in the way")
        with capture_logs() as logs:
            await world.look(3)
        assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["history_not_kept"]
        assert len(world.ledger.commits(UNIT)) == 20
        (tmp_path / "archive").unlink()
        await world.look(5)
        assert world.ledger.commits(UNIT)[0].index == 12


async def test_a_gap_in_the_ledger_is_told_and_loses_nothing(tmp_path: Path, autojump_clock: Clock) -> None:
    chain = grown(Chain(), 20)
    with open_history(tmp_path, chain) as world:
        world.take(chain)
        await world.history.restore()
        with world.ledger.transaction() as db:
            db.execute("DELETE FROM commits WHERE round_index = 2")
        with capture_logs() as logs:
            await world.look()
        assert "a gap" in logs[-1]["reason"]
        assert len(world.ledger.commits(UNIT)) == 19


async def test_a_ledger_without_the_commit_at_which_it_begins_is_damaged(tmp_path: Path, autojump_clock: Clock) -> None:
    chain = grown(Chain(), 20)
    with open_history(tmp_path, chain) as world:
        world.take(chain)
        await world.history.restore()
        await world.look(9)
        begins = begins_at(world.ledger, UNIT)
        _delete(world.ledger, begins or b"")
        with pytest.raises(StorageError, match="begins"):
            await world.history.restore()


def _delete(ledger: Ledger, commit: bytes) -> None:
    with ledger.transaction() as db:
        db.execute("DELETE FROM commits WHERE commit_id = ?", (commit,))


async def test_a_unit_of_which_the_host_keeps_a_copy_has_milestones_of_its_own(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    chain = grown(Chain(), 10)
    with open_history(tmp_path, chain, UnitName("trunk")) as world:
        world.take(chain)
        links = [world.log.genesis, *world.log.lineage(20)]
        await world.history.look_at(chain.genesis.commit, links[:6], lambda _: None)
        assert world.history.newest() == ()
        await world.history.look_at(chain.genesis.commit, links, lambda _: Root(b"r" * 32))
        (sealed,) = world.history.newest()
        assert world.opened(sealed).state_root == Root(b"r" * 32)
        assert world.opened(sealed).link == links[8]
        assert world.history.of(UNIT) == (world.history.of(UNIT)[0], sealed)
