from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
import trio
import trio.testing

from averaging.network.seams.interfaces import Stream
from averaging.rounds.lineage.past.held_milestones import HeldMilestones
from averaging.rounds.spine_follower import ASK_PAUSE_S, SpineFollower, SpineMove
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, fetch_commits, read_request
from averaging.state.log_entries import LOG_NAME
from averaging.state.unit_log import USUAL_LIMITS, LogLimits, UnitLog
from averaging.storage.memory_storage import UNBOUNDED_BYTES
from protocol.errors import PotluckError, RemoteProtocolError, StorageError, TransportError
from protocol.ids import UnitName
from protocol.rounds.lineage import lineage
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import SpineView
from protocol.rounds.messages.messages import Committed
from protocol.rounds.messages.requests import FetchCommits
from protocol.rounds.messages.wire import encode_certificate
from tests.averaging.rounds.round_world import (
    RUN_ID,
    UNIT,
    VERIFIER,
    MadeCommit,
    Party,
    RoundWorld,
    open_world,
    tree_nodes,
)
from tests.averaging.rounds.service_world import heartbeat_at, heartbeat_of
from tests.averaging.rounds.units_world import Sides, make_sides, storage_of

Clock = trio.testing.MockClock


@dataclass
class Scene:
    """A follower at the first party; the others hold the spine, and say where they stand when the test has them say it.

    Attributes:
        moves: the changes of lineage that were asked for.
        is_moving: whether they are done.
    """

    world: RoundWorld
    follower: SpineFollower
    moves: list[tuple[SpineView, SpineMove]] = field(default_factory=list)
    is_moving: bool = True

    @property
    def party(self) -> Party:
        return self.world.parties[0]

    @property
    def head(self) -> ChainLink:
        return self.follower.view.link

    async def hear(self, holder: Party, *links: ChainLink) -> None:
        """Heartbeats of a holder, and where they lead."""
        for link in links:
            await self.follower.take_heartbeat(holder.peer, heartbeat_at(holder, link))
            await self.follower.follow(self._move)

    async def bring(self, *commits: MadeCommit) -> None:
        """Commits come by message; nobody says where it stands."""
        for commit in commits:
            await self.follower.take_committed(self.world.parties[2].peer, Committed(UNIT, commit.certificate))

    async def _move(self, view: SpineView, move: SpineMove) -> None:
        self.moves.append((view, move))
        if self.is_moving:
            async with self.follower.moving:
                await self.follower.flip(move)

    async def restarted(self) -> SpineFollower:
        """Another process on the same disk."""
        follower = _follower(self.world)
        await follower.restore()
        return follower

    def serve(self) -> None:
        """Answer on the channel "fetch"."""

        async def serve(peer: object, stream: Stream) -> None:
            request = await read_request(stream)
            assert isinstance(request, FetchCommits)
            await self.follower.serve_commits(request, stream)

        self.party.network.serve_streams(FETCH_CHANNEL, serve)


def _follower(
    world: RoundWorld,
    unit: UnitName = UNIT,
    limits: LogLimits = USUAL_LIMITS,
    milestones: HeldMilestones | None = None,
) -> SpineFollower:
    party = world.parties[0]
    log = UnitLog(storage_of(party, UNIT), limits)
    return SpineFollower(unit, world.start_record, log, party.network, VERIFIER, RUN_ID, milestones)


@asynccontextmanager
async def _scene() -> AsyncIterator[Scene]:
    async with open_world() as world:
        yield Scene(world, _follower(world))


@asynccontextmanager
async def _forked() -> AsyncIterator[tuple[Scene, Sides]]:
    """It follows the one side of a fork, and the certificates of the other side are here."""
    async with _scene() as scene:
        sides = make_sides(scene.world, UNIT)
        holder = scene.world.parties[1]
        await scene.bring(sides.agreed, sides.ours)
        await scene.hear(holder, sides.ours.link)
        await scene.bring(*sides.theirs)
        yield scene, sides


# --- along the lineage --------------------------------------------------------------------------------------------------------


async def test_it_starts_at_the_start_of_the_run(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        await scene.follower.restore()
        assert scene.head == scene.world.start


async def test_commits_are_followed_as_far_as_a_holder_stands(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        made, holder = scene.world.commits(3), scene.world.parties[1]
        await scene.bring(*made)
        assert scene.head == scene.world.start
        await scene.hear(holder, made[1].link)
        assert (scene.head, scene.moves) == (made[1].link, [])
        assert set(scene.follower.view.tree.nodes) >= {commit.link.commit for commit in made}
        await scene.hear(holder, made[2].link)
        assert scene.head == made[2].link


async def test_commits_that_it_does_not_know_are_had_from_the_holder_that_speaks_of_them(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        made, holder = scene.world.commits(4), scene.world.parties[1]
        for commit in made:
            await holder.apply(commit)
        holder.serve_fetches()
        await scene.hear(holder, made[3].link)
        assert scene.head == made[3].link
        await scene.hear(holder, made[3].link)
        assert len(holder.asked) == 1


async def test_a_commit_on_a_base_that_it_does_not_know_makes_it_ask_whoever_brought_it(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        made, bringer = scene.world.commits(2), scene.world.parties[2]
        for commit in made:
            await bringer.apply(commit)
        bringer.serve_fetches()
        await scene.bring(made[1])
        assert made[1].link.commit in scene.follower.view.tree.nodes
        assert scene.head == scene.world.start
        await scene.hear(scene.world.parties[1], made[1].link)
        assert scene.head == made[1].link


async def test_a_holder_whose_answers_lead_nowhere_is_not_asked_at_every_word(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        liar = scene.world.parties[1]
        liar.serve_frames([])
        for _ in range(4):
            await scene.follower.take_heartbeat(liar.peer, heartbeat_of(liar, index=9))
        assert len(liar.asked) == 1
        await trio.sleep(ASK_PAUSE_S)
        await scene.follower.take_heartbeat(liar.peer, heartbeat_of(liar, index=9))
        assert len(liar.asked) == 2
        assert scene.head == scene.world.start


async def test_forged_certificates_move_nothing_whichever_way_they_come(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        (made,), liar = scene.world.commits(1), scene.world.parties[1]
        forged = replace(made.certificate, acks=made.certificate.acks[:1])
        liar.serve_frames([encode_certificate(forged)])
        with pytest.raises(RemoteProtocolError, match="quorum"):
            await scene.hear(liar, made.link)
        with pytest.raises(RemoteProtocolError, match="quorum"):
            await scene.follower.take_committed(liar.peer, Committed(UNIT, forged))
        assert set(scene.follower.view.tree.nodes) == {scene.world.start.commit}
        await scene.bring(made)
        await scene.hear(scene.world.parties[2], made.link)
        assert scene.head == made.link


async def test_a_holder_that_does_not_answer_fails_its_own_word_only(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        made = scene.world.commits(2)
        with pytest.raises(TransportError):
            await scene.hear(scene.world.parties[1], made[1].link)
        await scene.bring(*made)
        await scene.hear(scene.world.parties[2], made[0].link)
        assert scene.head == made[1].link, "by now its word leads somewhere"


async def test_a_heartbeat_of_somebody_who_does_not_hold_the_spine_says_nothing(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        (made,), other = scene.world.commits(1), scene.world.parties[1]
        await scene.bring(made)
        head = replace(heartbeat_at(other, made.link).heads[0], unit=UnitName("expert-0"))
        await scene.follower.take_heartbeat(other.peer, replace(heartbeat_at(other, made.link), heads=(head,)))
        await scene.hear(other)
        assert scene.head == scene.world.start


async def test_the_word_of_peers_that_are_gone_is_forgotten(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        (made,), holder = scene.world.commits(1), scene.world.parties[1]
        await scene.bring(made)
        await scene.follower.take_heartbeat(holder.peer, heartbeat_at(holder, made.link))
        scene.follower.keep_holders([scene.world.parties[2].peer])
        await scene.hear(scene.world.parties[2], scene.world.start)
        assert scene.head == scene.world.start


# --- on disk ------------------------------------------------------------------------------------------------------------------


async def test_a_restart_comes_back_to_the_followed_commit_and_not_beyond(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        made = scene.world.commits(3)
        await scene.bring(*made)
        await scene.hear(scene.world.parties[1], made[1].link)
        again = await scene.restarted()
        assert again.view.link == made[1].link
        assert again.has(made[0].link.commit)
        assert not again.has(made[2].link.commit)


async def test_a_log_of_many_changes_of_lineage_is_written_anew_with_the_next_commit_or_start(
    autojump_clock: Clock,
) -> None:
    async with _forked() as (scene, sides):
        scene.follower = _follower(scene.world, limits=LogLimits(slack_bytes=0))
        await scene.follower.restore()
        await scene.bring(*sides.theirs)

        async def flip(times: int) -> None:
            for _ in range(times):
                for side in ([sides.ours], sides.theirs):
                    await scene.follower.flip(SpineMove(sides.agreed.link.commit, tree_nodes(side)))

        def kinds() -> list[bytes]:
            return [entry[:1] for entry in scene.party.disk.logs[LOG_NAME]]

        await flip(9)
        assert kinds() == [b"T"] * 2 + [b"S"] * 18
        following = scene.world.commit_on(sides.theirs[-1].link, 9)
        await scene.bring(following)
        await scene.hear(scene.world.parties[1], following.link)
        assert kinds() == [b"T"] * 4 + [b"D"]
        await flip(9)
        again = _follower(scene.world, limits=LogLimits(slack_bytes=0))
        await again.restore()
        assert kinds() == [b"T"] * 3 + [b"D"] * 2
        assert again.view.link == (await scene.restarted()).view.link == sides.theirs[-1].link


async def test_a_commit_that_cannot_be_written_is_not_followed_and_followed_later(autojump_clock: Clock) -> None:
    async with _scene() as scene:
        made, holder = scene.world.commits(2), scene.world.parties[1]
        await scene.bring(*made)
        scene.party.disk.fail_with_disk_full_after(10)
        with pytest.raises(StorageError, match="no space"):
            await scene.hear(holder, made[1].link)
        assert scene.head == scene.world.start
        scene.party.disk.capacity_bytes = UNBOUNDED_BYTES
        await scene.hear(holder, made[1].link)
        assert scene.head == made[1].link
        assert (await scene.restarted()).view.link == made[1].link


async def test_the_log_of_another_run_is_refused(autojump_clock: Clock) -> None:
    async with _scene() as scene, open_world(target_tokens=1) as other:
        (stray,) = other.commits(1)
        await scene.follower.log.log_certificate(stray.record.parent, encode_certificate(stray.certificate))
        with pytest.raises(StorageError, match="another run"):
            await scene.follower.restore()
        assert scene.head == scene.world.start


@pytest.mark.parametrize("trouble", ["no record", "no certificate"])
async def test_a_log_that_cannot_be_read_is_refused(trouble: str, autojump_clock: Clock) -> None:
    async with _scene() as scene:
        (made,) = scene.world.commits(1)
        raws = {
            "no record": encode_certificate(replace(made.certificate, record=b"no record")),
            "no certificate": b"\xff\xff",
        }
        await scene.follower.log.log_certificate(made.record.parent, raws[trouble])
        with pytest.raises(StorageError, match="a log with"):
            await scene.follower.restore()


async def test_it_begins_at_a_milestone_and_forgets_what_lies_before_a_later_one(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "MAX_DEPTH", 4)
    async with _scene() as scene:
        made, held, holder = scene.world.commits(9), scene.world.milestones(), scene.world.parties[1]
        held.take([scene.world.milestone_at(made[1])], "the host")
        scene.follower = _follower(scene.world, milestones=held)
        await scene.follower.restore()
        assert scene.head == made[1].link
        held.take([scene.world.milestone_at(made[3])], "the host")
        await scene.bring(*made[2:])
        await scene.hear(holder, made[8].link)
        again = _follower(scene.world, milestones=held)
        await again.restore()
        assert again.view.link == scene.head == made[8].link
        assert again.view.tree.root == made[3].link.commit
        assert len((await scene.follower.log.load()).certificates) == 5


# --- another lineage ----------------------------------------------------------------------------------------------------------


async def test_another_lineage_is_followed_by_a_move_and_by_nothing_else(autojump_clock: Clock) -> None:
    async with _forked() as (scene, sides):
        scene.is_moving = False
        await scene.hear(scene.world.parties[1], sides.theirs[-1].link)
        ((view, move),) = scene.moves
        assert (view.head, move.fork) == (sides.theirs[-1].link.commit, sides.agreed.link.commit)
        assert [node.link for node in move.path] == [made.link for made in sides.theirs]
        assert scene.head == sides.ours.link
        assert (await scene.restarted()).view.link == sides.ours.link
        await scene.hear(scene.world.parties[1], sides.theirs[-1].link)
        assert len(scene.moves) == 2, "it is asked for again"


async def test_after_a_move_it_stands_on_the_other_lineage_and_so_does_its_log(autojump_clock: Clock) -> None:
    async with _forked() as (scene, sides):
        await scene.hear(scene.world.parties[1], sides.theirs[-1].link)
        assert scene.head == sides.theirs[-1].link
        assert scene.follower.has(sides.theirs[0].link.commit)
        assert not scene.follower.has(sides.ours.link.commit)
        assert (await scene.restarted()).view.link == sides.theirs[-1].link
        following = scene.world.commit_on(sides.theirs[-1].link, 8, members=[1, 2])
        await scene.bring(following)
        await scene.hear(scene.world.parties[1], following.link)
        assert (await scene.restarted()).view.link == following.link
        assert len(scene.moves) == 1


async def test_a_lineage_that_fewer_speak_for_is_not_left_for_a_worse_one(autojump_clock: Clock) -> None:
    async with _forked() as (scene, sides):
        await scene.hear(scene.world.parties[1], sides.theirs[-1].link)
        for party in scene.world.parties[2:]:
            await scene.hear(party, sides.ours.link)
        assert scene.head == sides.theirs[-1].link
        await scene.hear(scene.world.parties[1], sides.ours.link)
        assert scene.head == sides.ours.link, "nobody is left there who could give anybody its bytes"


async def test_while_a_move_is_under_way_nothing_else_is_followed(autojump_clock: Clock) -> None:
    async with _forked() as (scene, sides):
        gate = trio.Event()

        async def slow(view: SpineView, move: SpineMove) -> None:
            scene.moves.append((view, move))
            await gate.wait()
            await scene.follower.flip(move)

        holder = scene.world.parties[1]
        await scene.follower.take_heartbeat(holder.peer, heartbeat_at(holder, sides.theirs[-1].link))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.follower.follow, slow)
            await trio.sleep(1.0)
            await scene.hear(holder, sides.theirs[-1].link)
            assert (len(scene.moves), scene.head) == (1, sides.ours.link)
            gate.set()
        assert scene.head == sides.theirs[-1].link


async def test_a_move_that_fails_is_told_and_may_be_tried_again(autojump_clock: Clock) -> None:
    async with _forked() as (scene, sides):
        holder = scene.world.parties[1]

        async def refused(view: SpineView, move: SpineMove) -> None:
            raise StorageError("no space left on the disk", "some")

        await scene.follower.take_heartbeat(holder.peer, heartbeat_at(holder, sides.theirs[-1].link))
        with pytest.raises(PotluckError, match="no space"):
            await scene.follower.follow(refused)
        assert scene.head == sides.ours.link
        await scene.hear(holder, sides.theirs[-1].link)
        assert scene.head == sides.theirs[-1].link


async def test_a_flip_that_its_log_refused_stands_in_memory_and_is_logged_before_the_next_commit(
    autojump_clock: Clock,
) -> None:
    async with _forked() as (scene, sides):
        holder = scene.world.parties[1]
        scene.party.disk.fail_with_disk_full_after(10)
        await scene.hear(holder, sides.theirs[-1].link)
        assert scene.head == sides.theirs[-1].link
        assert (await scene.restarted()).view.link == sides.ours.link
        scene.party.disk.capacity_bytes = UNBOUNDED_BYTES
        following = scene.world.commit_on(sides.theirs[-1].link, 8, members=[1, 2])
        await scene.bring(following)
        await scene.hear(holder, following.link)
        assert (await scene.restarted()).view.link == following.link


# --- for others ---------------------------------------------------------------------------------------------------------------


async def test_commits_of_the_followed_lineage_are_served_after_the_newest_known_one(autojump_clock: Clock) -> None:
    async with _forked() as (scene, sides):
        scene.serve()
        asker = scene.world.parties[2]
        agreed, ours = (encode_certificate(made.certificate) for made in (sides.agreed, sides.ours))
        start, fork = scene.world.start.commit, sides.agreed.link.commit
        for known, expected in (
            ([start], [agreed, ours]),
            ([start, fork], [ours]),
            ([sides.theirs[-1].link.commit, fork, start], [ours]),
            ([sides.ours.link.commit], []),
            ([sides.theirs[-1].link.commit], []),
        ):
            assert await fetch_commits(asker.network, scene.party.peer, UNIT, known) == expected
