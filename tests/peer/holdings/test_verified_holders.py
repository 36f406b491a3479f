"""A peer that left is not a holder, though the directory still lists it. Neither is a peer that shows no proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio

from averaging.network.seams.interfaces import Stream
from averaging.rounds.traffic.transfer import FETCH_CHANNEL
from peer.holdings.verified_holders import ASK_WITHIN_S, NUM_LOOKED_AT, PROVE_WITHIN_S, CommitProof, present
from protocol.errors import PeerUnreachable, RemoteProtocolError
from protocol.ids import PeerId
from protocol.rounds.lineage import lineage
from protocol.rounds.messages.wire import encode_certificate
from tests.averaging.rounds.round_world import RUN_ID, UNIT, VERIFIER, Party, RoundWorld, open_world
from tests.virtual import InlineOffload

HERE, GONE, FROZEN, OUTBOUND = (PeerId(name) for name in ("here", "gone", "frozen", "outbound"))
LISTED = {HERE: (0,), GONE: (1,), FROZEN: (1,), OUTBOUND: (2,)}


async def _ask(peer: PeerId) -> None:
    if peer == FROZEN:
        await trio.sleep_forever()
    if peer == GONE:
        raise PeerUnreachable(f"{peer} is gone", "a peer that answers")


async def _shows_one(peer: PeerId, part: int) -> int:
    return 1


async def test_who_is_gone_or_does_not_answer_is_no_holder_and_who_cannot_be_asked_has_its_word(
    autojump_clock: object,
) -> None:
    begin_s = trio.current_time()
    found = await present(LISTED, {HERE, GONE, FROZEN}, _ask, _shows_one, (UNIT,) * 3, 0)
    assert (found.held, found.on_word, found.doubted) == ({HERE: (0,)}, {OUTBOUND: (2,)}, {})
    assert trio.current_time() - begin_s <= ASK_WITHIN_S, "all are asked at once"


async def test_where_nobody_is_listed_nobody_is_asked(autojump_clock: object) -> None:
    assert (await present({}, {HERE}, _ask, _shows_one, (UNIT,), 0)).is_empty


async def _look(
    world: RoundWorld, claims: dict[PeerId, tuple[int, ...]]
) -> tuple[dict[PeerId, tuple[int, ...]], float]:
    """The holders that the third party counts, and how long that took."""
    me = world.parties[2]
    proof = CommitProof(me.network, InlineOffload(), VERIFIER, RUN_ID, world.start_record, (UNIT,))
    begin_s = trio.current_time()
    found = await present(claims, set(claims), _ask, proof, (UNIT,), 0)
    return dict(found.held), trio.current_time() - begin_s


async def _holder(world: RoundWorld, num_commits: int = NUM_LOOKED_AT + 2) -> Party:
    party = world.parties[0]
    for commit in world.commits(num_commits):
        await party.apply(commit)
    party.serve_fetches()
    return party


async def test_a_holder_is_believed_by_the_first_commits_that_it_shows(autojump_clock: object) -> None:
    async with open_world() as world:
        holder = await _holder(world)
        proof = CommitProof(world.parties[2].network, InlineOffload(), VERIFIER, RUN_ID, world.start_record, (UNIT,))
        assert await proof(holder.peer, 0) == NUM_LOOKED_AT
        held, took_s = await _look(world, {holder.peer: (0,)})
    assert held == {holder.peer: (0,)}
    assert took_s < 1.0


async def test_a_holder_that_has_forgotten_the_first_commits_is_believed_by_those_after_a_milestone(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "MAX_DEPTH", 4)
    async with open_world() as world:
        made, holder, me = world.commits(12), world.parties[0], world.parties[2]
        for commit in made[:5]:
            await holder.apply(commit)
        holder.milestones.take([world.milestone_at(made[3])], "the host")
        for commit in made[5:]:
            await holder.apply(commit)
        assert holder.chain.line.root.index == 4
        holder.serve_fetches()
        held = world.milestones()
        proof = CommitProof(me.network, InlineOffload(), VERIFIER, RUN_ID, world.start_record, (UNIT,), held)
        assert await proof(holder.peer, 0) == 0
        held.take([world.milestone_at(made[3]), world.milestone_at(made[7])], "the host")
        assert await proof(holder.peer, 0) == NUM_LOOKED_AT
        liar = world.parties[1]
        liar.serve_frames([encode_certificate(made[9].certificate)])
        with pytest.raises(RemoteProtocolError, match="follows none"):
            await proof(liar.peer, 0)


def _invented(world: RoundWorld) -> Sequence[bytes]:
    """A commit of this unit that nobody but the liar voted for."""
    made = world.commit_on(world.start, 5).certificate
    return [encode_certificate(replace(made, acks=made.acks[1:2]))]


def _of_another_place(world: RoundWorld) -> Sequence[bytes]:
    """The second commit of the run, without the first."""
    return [encode_certificate(world.commits(2)[1].certificate)]


@pytest.mark.parametrize(
    ("frames", "reported"),
    [
        (lambda world: [], "shows no commit of it, of which others show 4 commits"),
        (lambda world: [b"noise"], "shows no commits of it that verify"),
        (lambda world: [b"noise"] * 1000, "shows no commits of it that verify"),
        (_of_another_place, "shows no commits of it that verify"),
    ],
    ids=["nothing", "noise", "much noise", "another place"],
)
async def test_a_liar_is_told_in_one_line_and_not_counted(
    autojump_clock: object, capsys: pytest.CaptureFixture[str], frames: object, reported: str
) -> None:
    async with open_world() as world:
        holder, liar = await _holder(world), world.parties[1]
        assert callable(frames)
        liar.serve_frames(frames(world))
        held, took_s = await _look(world, {holder.peer: (0,), liar.peer: (0,)})
    assert held == {holder.peer: (0,)}
    assert took_s < PROVE_WITHIN_S
    lines = [line for line in capsys.readouterr().out.splitlines() if "holder_not_believed" in line]
    assert len(lines) == 1
    assert reported in lines[0]


async def test_commits_that_a_liar_invents_are_no_proof(autojump_clock: object) -> None:
    async with open_world() as world:
        liar = world.parties[1]
        liar.serve_frames(_invented(world))
        assert (await _look(world, {liar.peer: (0,)}))[0] == {}


async def test_a_liar_that_never_ends_its_answer_costs_no_more_than_the_time_for_proofs(
    autojump_clock: object, capsys: pytest.CaptureFixture[str]
) -> None:
    async def drip(peer: PeerId, stream: Stream) -> None:
        await stream.receive_frame()
        await trio.sleep_forever()

    async with open_world() as world:
        holder, liar = await _holder(world), world.parties[1]
        liar.network.serve_streams(FETCH_CHANNEL, drip)
        held, took_s = await _look(world, {holder.peer: (0,), liar.peer: (0,)})
    assert held == {holder.peer: (0,)}
    assert took_s <= PROVE_WITHIN_S + 2.0, "and a second for closing the stream"
    assert "does not show its commits within 10 s" in capsys.readouterr().out


async def test_a_part_that_the_run_has_not_is_refused(autojump_clock: object) -> None:
    async with open_world() as world:
        holder = await _holder(world)
        assert (await _look(world, {holder.peer: (3,)}))[0] == {}
