from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
import torch
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.arithmetic.error_feedback import FedDelta
from averaging.codecs import codec_by_name
from averaging.rounds.lineage.unit_feedback import ErrorFeedback
from averaging.state.residual_files import FOLDER
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.ids import Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import CommitTree, tree_of
from protocol.rounds.messages.record import Disagreement
from tests.at_once import encode_fed
from tests.averaging.rounds.round_world import GRID, MadeCommit, RoundWorld, open_world
from tests.virtual import InlineOffload

Clock = trio.testing.MockClock
INT4 = codec_by_name("int4")


@dataclass
class Peer:
    """The first party's residual over the processes on one disk, and the commits that it knows of."""

    world: RoundWorld
    nursery: trio.Nursery
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    links: list[ChainLink] = field(default_factory=list)
    known: list[MadeCommit] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        self.links = [self.world.start]

    async def boot(self) -> None:
        """A new process: nothing but the disk and the log of commits survives."""
        self.disk.power_on()
        storage = MemoryStorage(self.disk)
        self.feedback = ErrorFeedback(self.world.parties[0].peer, 1.0, GRID, storage, InlineOffload())
        await self.feedback.restore(self.links, self.tree)
        self._scope = trio.CancelScope()
        self.nursery.start_soon(self._run, self.feedback, self._scope)

    async def _run(self, feedback: ErrorFeedback, scope: trio.CancelScope) -> None:
        with scope:
            await feedback.run()

    async def restart(self) -> None:
        """Power off and on."""
        self._scope.cancel()
        self.disk.crash(random.Random(1))
        await trio.sleep(1.0)
        await self.boot()

    @property
    def tree(self) -> CommitTree:
        tree = tree_of(self.world.start)
        return tree.add_all([(commit.link, commit.certificate) for commit in self.known])

    def offer(self) -> tuple[Root, FedDelta]:
        """Some work on the head, and the residual in it."""
        self.number += 1
        theta_N = torch.randn(GRID.num_elements, generator=torch.Generator().manual_seed(self.number))
        fed = encode_fed(torch.zeros_like(theta_N), theta_N, self.feedback.state.residual, 1.0, INT4, GRID)
        root = Root(bytes([self.number]) * 32)
        self.feedback.offer(root, fed)
        return root, fed

    def made(self, parent: ChainLink, root: Root | None, omitted: Sequence[int] = ()) -> MadeCommit:
        """A commit that counts this contribution of ours, or none."""
        self.number += 1
        roots = [root, Root(b"o" * 32), Root(b"p" * 32)] if root is not None else []
        members = [0, 1, 2] if root is not None else [1, 2]
        made = self.world.commit_on(
            parent, self.number, members=members, voters=[1, 2], roots=roots, omitted_from_last_slice=omitted
        )
        self.known.append(made)
        return made

    def commit(self, root: Root | None, omitted: Sequence[int] = (), *, is_reported: bool = True) -> None:
        """One more commit on our lineage; `is_reported`: the process lived to hear of it."""
        self.links.append(self.made(self.links[-1], root, omitted).link)
        if is_reported:
            self.feedback.commit(self.links[-1])
            self.feedback.changed()

    @property
    def left(self) -> torch.Tensor:
        return self.feedback.state.residual.values_N


@asynccontextmanager
async def _peer() -> AsyncIterator[Peer]:
    async with open_world() as world, trio.open_nursery() as nursery:
        peer = Peer(world, nursery)
        await peer.boot()
        yield peer
        nursery.cancel_scope.cancel()


async def _written() -> None:
    await trio.sleep(2.0)


async def test_residual_and_pending_one_are_there_after_a_restart_bit_by_bit(autojump_clock: Clock) -> None:
    async with _peer() as peer:
        first, fed = peer.offer()
        peer.commit(first)
        second, pending = peer.offer()
        await _written()
        await peer.restart()
        assert torch.equal(peer.left, fed.left_N)
        peer.commit(second)
        assert torch.equal(peer.left, pending.left_N)


async def test_a_commit_that_came_while_we_were_away_makes_the_saved_pending_residual_the_one(
    autojump_clock: Clock,
) -> None:
    async with _peer() as peer:
        root, fed = peer.offer()
        await _written()
        peer.commit(root, is_reported=False)
        await peer.restart()
        assert torch.equal(peer.left, fed.left_N)


async def test_a_contribution_that_was_not_counted_while_we_were_away_leaves_the_residual_as_it_was_stored(
    autojump_clock: Clock,
) -> None:
    async with _peer() as peer:
        first, fed = peer.offer()
        peer.commit(first)
        peer.offer()
        await _written()
        peer.commit(None, is_reported=False)
        await peer.restart()
        assert torch.equal(peer.left, fed.left_N)


async def test_of_a_contribution_that_was_counted_in_part_only_those_chunks_change(autojump_clock: Clock) -> None:
    for is_reported in (True, False):
        async with _peer() as peer:
            first, before = peer.offer()
            peer.commit(first)
            second, pending = peer.offer()
            await _written()
            peer.commit(second, [0], is_reported=is_reported)
            await _written()
            await peer.restart()
            assert torch.equal(peer.left[:40], pending.left_N[:40])
            assert torch.equal(peer.left[40:], before.left_N[40:])


async def test_of_chunks_that_disagree_only_what_the_codec_left_of_them_stays(autojump_clock: Clock) -> None:
    """They count as sent: offered again they would disagree again."""
    async with _peer() as peer:
        root, pending = peer.offer()
        link = peer.made(peer.links[-1], root).link
        assert link.record is not None
        me = peer.world.parties[0].peer
        slices = tuple(replace(part, disagreeing=(Disagreement(me, 1, -100),)) for part in link.record.slices)
        peer.feedback.commit(replace(link, content=replace(link.record, slices=slices)))
        peer.feedback.changed()
        await _written()
        assert torch.equal(peer.left, pending.left_N)


async def test_a_pending_residual_that_was_not_written_yet_is_zero_once_its_contribution_is_counted(
    autojump_clock: Clock,
) -> None:
    async with _peer() as peer:
        first, _ = peer.offer()
        peer.commit(first)
        await _written()
        second, _ = peer.offer()
        peer.commit(second, [0], is_reported=False)
        await peer.restart()
        assert not peer.left[:40].any()
        assert peer.left[40:].any()


@pytest.mark.parametrize("is_counted", [True, False])
async def test_a_crash_at_any_moment_of_writing_leaves_the_residual_of_the_lineage_or_zeros(
    autojump_clock: Clock, is_counted: bool
) -> None:
    """Each chunk is what it should be, or nothing: never what went out with a contribution that is counted."""
    seen = set[str]()
    for millisecond in range(0, 120, 3):
        async with _peer() as peer:
            first, before = peer.offer()
            peer.commit(first)
            await _written()
            second, pending = peer.offer()
            await trio.sleep(0.02)
            peer.commit(second if is_counted else None)
            await trio.sleep(millisecond / 1000)
            await peer.restart()
            expected_N = pending.left_N if is_counted else before.left_N
            for chunk in range(GRID.num_chunks):
                begin, stop = GRID.bounds(chunk)
                is_right = torch.equal(peer.left[begin:stop], expected_N[begin:stop])
                seen.add("right" if is_right else "zero")
                assert is_right or not peer.left[begin:stop].any()
            # and the same after every further start
            again_N = peer.left
            await peer.restart()
            assert torch.equal(peer.left, again_N)
    assert seen == ({"right", "zero"} if is_counted else {"right"})


async def test_a_damaged_file_is_said_in_one_line_and_costs_its_chunks(autojump_clock: Clock) -> None:
    async with _peer() as peer:
        root, fed = peer.offer()
        peer.commit(root)
        await _written()
        peer.disk.files[f"{FOLDER}stored/02"] = b"torn"
        with capture_logs() as logs:
            await peer.restart()
        assert [line["event"] for line in logs] == ["residual_damaged"]
        begin, stop = GRID.bounds(2)
        assert not peer.left[begin:stop].any()
        assert torch.equal(peer.left[stop:], fed.left_N[stop:])


async def test_two_processes_on_one_base_the_older_ones_contribution_is_counted(autojump_clock: Clock) -> None:
    """It carried the earlier residual, which is not offered again; the newer process' own residual is useless then."""
    async with _peer() as peer:
        first, _ = peer.offer()
        peer.commit(first)
        older, _ = peer.offer()
        await _written()
        await peer.restart()
        peer.offer()
        peer.commit(older)
        assert not peer.left.any()


async def test_a_peer_that_joins_has_no_residual_and_one_that_comes_back_by_a_state_hears_of_all_that_was_counted(
    autojump_clock: Clock,
) -> None:
    async with _peer() as peer:
        assert not peer.left.any()
        root, fed = peer.offer()
        for counted in (None, root):
            peer.links.append(peer.made(peer.links[-1] if counted is None else peer.world.start, counted).link)
            del peer.links[1:-1]
        await peer.feedback.follow(peer.links, peer.tree)
        assert torch.equal(peer.left, fed.left_N)


async def test_a_residual_that_stood_on_a_lineage_that_was_left_follows_by_the_fork(autojump_clock: Clock) -> None:
    """The process died between the switch and the writing: our contribution was counted on both sides, and once is enough."""
    async with _peer() as peer:
        root, fed = peer.offer()
        peer.commit(root)
        await _written()
        peer.links[1:] = [peer.made(peer.world.start, root).link]
        await peer.restart()
        assert torch.equal(peer.left, fed.left_N)
        other, pending = peer.offer()
        await _written()
        peer.links[1:] = [peer.made(peer.world.start, other).link]
        await peer.restart()
        assert torch.equal(peer.left, pending.left_N)


async def test_a_residual_of_a_lineage_that_nobody_knows_any_more_is_dropped_and_said(autojump_clock: Clock) -> None:
    async with _peer() as peer:
        root, _ = peer.offer()
        peer.commit(root)
        await _written()
        peer.links, peer.known = [peer.world.start], []
        with capture_logs() as logs:
            await peer.restart()
        assert [line["event"] for line in logs] == ["residual_dropped"]
        assert not peer.left.any()


async def test_a_switch_while_a_residual_is_written_has_all_of_it_written_again_on_the_new_lineage(
    autojump_clock: Clock,
) -> None:
    async with _peer() as peer:
        root, fed = peer.offer()
        await _written()
        peer.commit(root)
        await trio.sleep(0.0025)  # two segments of six
        peer.links[1:] = [peer.made(peer.world.start, root).link]
        peer.feedback.switch(peer.feedback.state, peer.links[-1].commit)
        peer.feedback.changed()
        await _written()
        del peer.known[0]
        with capture_logs() as logs:
            await peer.restart()
        assert logs == []
        assert torch.equal(peer.left, fed.left_N)


async def test_a_disk_that_refuses_is_said_and_tried_again_with_the_next_change(autojump_clock: Clock) -> None:
    async with _peer() as peer:
        capacity = peer.disk.capacity_bytes
        peer.disk.fail_with_disk_full_after(10)
        with capture_logs() as logs:
            root, fed = peer.offer()
            await _written()
        assert [line["event"] for line in logs] == ["residual_not_saved"]
        peer.disk.capacity_bytes = capacity
        peer.commit(root)
        await _written()
        await peer.restart()
        assert torch.equal(peer.left, fed.left_N)


async def test_a_residual_that_had_to_be_bounded_is_said(autojump_clock: Clock) -> None:
    async with _peer() as peer:
        fed = FedDelta((), torch.zeros(GRID.num_elements), (0.0,) * GRID.num_chunks, num_clipped=2)
        with capture_logs() as logs:
            peer.feedback.offer(Root(b"x" * 32), fed)
        assert [line["event"] for line in logs] == ["residual_bounded"]
