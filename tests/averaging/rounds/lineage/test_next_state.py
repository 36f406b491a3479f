from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
import trio

from averaging.codecs import codec_by_name
from averaging.rounds.lineage.next_state import NextState, examined
from averaging.state.state import UnitState, state_root
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import CommitId, UnitName
from protocol.merkle import leaf_hash
from protocol.rounds.messages.record import OuterStep
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import apply_outer_step
from tests.averaging.rounds.counting_codec import CountingCodec
from tests.averaging.rounds.round_world import CODEC, GRID, OUTER, MadeCommit, open_world


@dataclass
class Scene:
    """A state, an update of it chunk by chunk, and the state after."""

    genesis: UnitState
    commit: MadeCommit
    codec: CountingCodec = field(default_factory=CountingCodec)

    def __post_init__(self) -> None:
        data = b"".join(self.commit.results)
        self.chunks = [data[begin : begin + 40] for begin in range(0, len(data), 40)]
        self.hashes = [leaf_hash(chunk) for chunk in self.chunks]
        update_N = CODEC.decode(data, GRID.num_elements)
        before = self.genesis
        self.anchor_N, self.momentum_N = apply_outer_step(before.anchor_N, before.momentum_N, update_N, OUTER)

    def next_state(self) -> NextState:
        return NextState(self.genesis, OUTER, self.codec, GRID)

    def check(self, ahead: NextState) -> None:
        """`ahead` is the state after the commit."""
        state = ahead.at(self.commit.link)
        assert torch.equal(state.anchor_N, self.anchor_N)
        assert torch.equal(state.momentum_N, self.momentum_N)
        assert (state.head, state.index) == (self.commit.link.commit, 1)


async def _scene() -> Scene:
    async with open_world() as world:
        return Scene(world.genesis, world.commits(1)[0])


@pytest.fixture
def scene() -> Scene:
    """The genesis and a commit on it."""
    return trio.run(_scene)


def test_chunks_made_in_any_order_make_the_state_after_the_commit(scene: Scene) -> None:
    ahead = scene.next_state()
    for first, stop in ((4, 6), (0, 1), (1, 4)):
        ahead.make(first, scene.chunks[first:stop], scene.hashes[first:stop])
    scene.check(ahead)


def test_a_chunk_that_was_made_by_the_same_bytes_is_not_made_again(scene: Scene) -> None:
    ahead = scene.next_state()
    ahead.make(1, scene.chunks[1:4], scene.hashes[1:4])
    scene.codec.num_decoded = 0
    ahead.make(0, scene.chunks, scene.hashes)
    assert scene.codec.num_decoded == 3 * 10, "chunks 0, 4 and 5"
    scene.check(ahead)


def test_a_chunk_that_was_made_by_other_bytes_is_made_again(scene: Scene) -> None:
    ahead, other = scene.next_state(), CODEC.encode(torch.full((10,), 7.0))
    ahead.make(2, [other], [leaf_hash(other)])
    ahead.make(0, scene.chunks, scene.hashes)
    scene.check(ahead)


def test_bytes_that_mean_nothing_are_not_taken_for_made(scene: Scene) -> None:
    ahead, bad = scene.next_state(), b"\xff" * 40
    with pytest.raises(RemoteProtocolError, match="not finite"):
        ahead.make(2, [bad], [leaf_hash(bad)])
    ahead.make(0, scene.chunks, scene.hashes)
    scene.check(ahead)


@pytest.mark.parametrize("outer", [OUTER, OuterStep("mean", 1.0, 0.0)])
def test_bytes_that_are_refused_half_way_leave_nothing_that_is_taken_for_made(outer: OuterStep) -> None:
    grid, codec = ChunkGrid(num_elements=512, chunk_elements=512), codec_by_name("int8")
    anchor_N, update_N = (torch.randn(512, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    state = UnitState(UnitName("unit"), CommitId(bytes(32)), 0, 0, anchor_N, torch.zeros(512))
    good = codec.encode(update_N)
    bad = bytearray(codec.encode(update_N + 1.0))
    bad[-1] = 0x80  # in the second block: the first one is applied before this is seen
    ahead = NextState(state, outer, codec, grid)
    ahead.make(0, [good], [leaf_hash(good)])
    with pytest.raises(RemoteProtocolError):
        ahead.make(0, [bytes(bad)], [leaf_hash(bytes(bad))])
    ahead.make(0, [good], [leaf_hash(good)])
    expected_N, _ = apply_outer_step(anchor_N, torch.zeros(512), codec.decode(good, 512), outer)
    assert torch.equal(ahead._moved[0], expected_N)


def test_a_state_with_a_chunk_missing_is_none(scene: Scene) -> None:
    ahead = scene.next_state()
    ahead.make(0, scene.chunks[:5], scene.hashes[:5])
    with pytest.raises(LocalProtocolError, match="5 chunks of a new state"):
        ahead.at(scene.commit.link)


def test_the_state_before_is_left_alone(scene: Scene) -> None:
    before = state_root(scene.genesis, GRID)
    ahead = scene.next_state()
    ahead.make(0, scene.chunks, scene.hashes)
    assert state_root(scene.genesis, GRID) == before


def test_each_chunk_is_claimed_once(scene: Scene) -> None:
    ahead = scene.next_state()
    assert ahead.claim(range(3))
    assert not ahead.claim(range(2, 4)), "2 is another's"
    assert ahead.claim(range(3, 6)), "3 was not claimed with it"


def test_it_follows_its_own_state_by_its_own_numbers_alone(scene: Scene) -> None:
    ahead, state = scene.next_state(), scene.genesis
    assert ahead.follows(state, OUTER)
    assert not ahead.follows(state, OuterStep("nesterov", 0.7, 0.9))
    twin = UnitState(state.unit, state.head, 0, 0, state.anchor_N.clone(), state.momentum_N.clone())
    assert not ahead.follows(twin, OUTER)


@pytest.mark.parametrize("has_state", [False, True])
def test_what_comes_is_hashed_and_refused_where_it_cannot_be_applied(has_state: bool, scene: Scene) -> None:
    ahead = scene.next_state() if has_state else None
    assert examined(scene.codec, GRID, 1, scene.chunks[1:3], ahead) == scene.hashes[1:3]
    for bad, why in ((b"\xff" * 40, "not finite"), (b"", "0 bytes")):
        with pytest.raises(RemoteProtocolError, match=why):
            examined(scene.codec, GRID, 3, [bad], ahead)
