from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.ids import CommitId, Root, RunId, UnitName
from protocol.kinds.codec_table import CONTRIBUTION_CODECS
from protocol.kinds.robust_table import ROBUST_RULES
from protocol.merkle import leaf_hash
from protocol.rounds.audit.sum_proof import SumProof
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.tensors.tensor_schema import ChunkGrid
from tests.averaging.rounds.audit.audit_world import CHUNK, LENGTH, REDUCER, SIX, sealed_by, summed, with_one_wrong
from tests.averaging.rounds.offers_world import PART
from tests.simulation.signing import HashVerifier


@pytest.mark.parametrize("robust", ROBUST_RULES)
@pytest.mark.parametrize("codec_name", CONTRIBUTION_CODECS)
def test_no_chunk_of_an_honest_sum_convicts_its_reducer_and_each_false_one_does(codec_name: str, robust: str) -> None:
    world = summed(codec_name, robust)
    for chunk in range(PART.first_chunk, PART.stop_chunk):
        assert world.check.why_not(world.proof(chunk)) == f"chunk {chunk} is summed as the rule says"
        wrong = with_one_wrong(world.chunks, world.check.means.result_codec, chunk)
        assert world.check.why_not(world.proof_of_lie(wrong, chunk)) == ""
        for other in range(PART.first_chunk, PART.stop_chunk):
            if other != chunk:
                assert "as the rule says" in world.check.why_not(world.proof_of_lie(wrong, other)), (
                    "the others are true"
                )


def test_a_sum_with_other_weights_or_with_somebody_left_out_in_silence_is_false() -> None:
    world = summed("int8", "clip-agree")
    inputs = world.what.inputs
    heavier = (*inputs[:1], replace(inputs[1], weight=5000), *inputs[2:])
    assert world.check.why_not(world.proof_of_lie(world.chunks, inputs=heavier)) == ""
    assert {each.peer for each in world.what.disagreeing} == {SIX[4].peer_id, SIX[5].peer_id}
    assert world.check.why_not(world.proof_of_lie(world.chunks, disagreeing=world.what.disagreeing[:1])) == ""


@pytest.mark.parametrize("robust", ["off", "clip", "clip-agree"])
@pytest.mark.parametrize("num_strangers", [1, 3, 5])
def test_a_sum_that_counts_strangers_is_true_as_its_reducer_made_it_and_false_where_they_weigh_more(
    robust: str, num_strangers: int
) -> None:
    world = summed("int8", robust, strangers=range(num_strangers))
    inputs = world.what.inputs
    theirs = sum(each.weight for each in inputs if each.is_stranger)
    assert 0 < 4 * theirs <= sum(each.weight for each in inputs)
    assert world.check.why_not(world.proof()) == f"chunk {CHUNK} is summed as the rule says"
    wrong = with_one_wrong(world.chunks, world.check.means.result_codec)
    assert world.check.why_not(world.proof_of_lie(wrong)) == ""
    heavier = tuple(replace(each, weight=500 if each.is_stranger else each.weight) for each in inputs)
    if robust == "off":  # a guarded mean bounds strangers in any case
        assert world.check.why_not(world.proof_of_lie(world.chunks, inputs=heavier)) == ""


def test_whoever_is_called_a_stranger_in_a_proof_other_than_its_reducer_signed_convicts_nobody() -> None:
    world = summed("int8", "clip-agree", strangers=[5])
    proof = world.proof_of_lie(with_one_wrong(world.chunks, world.check.means.result_codec))
    assert world.check.why_not(proof) == ""
    alike = tuple(replace(each, is_stranger=False) for each in proof.sum.inputs)
    assert "did not sign" in world.check.why_not(replace(proof, sum=replace(proof.sum, inputs=alike)))


def test_a_sum_that_counts_a_chunk_which_cannot_be_decoded_is_false() -> None:
    """Else an accomplice that contributes nonsense would make its reducer safe from every proof."""
    world = summed("fp32")
    proof = world.proof()
    nonsense = b"\xff" * len(proof.shown[3].data)  # not a number
    for data in (nonsense, proof.shown[3].data[:-4]):
        root = leaf_hash(data)  # of a unit with one chunk
        shown = (*proof.shown[:3], replace(proof.shown[3], root=Root(root), data=data), *proof.shown[4:])
        assert world.check._is_false(replace(proof, shown=shown))


def _other_bit(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


MUTATIONS: dict[str, tuple[Callable[[SumProof], SumProof], str]] = {
    "another unit": (lambda p: replace(p, sum=replace(p.sum, unit=UnitName("other"))), "a sum of unit other"),
    "another base": (lambda p: replace(p, sum=replace(p.sum, base=CommitId(b"x" * 32))), "did not sign"),
    "another reducer": (lambda p: replace(p, sum=replace(p.sum, reducer=SIX[1].peer_id)), "did not sign"),
    "another share lost": (lambda p: replace(p, sum=replace(p.sum, lost_ppm=1)), "did not sign"),
    "another result": (lambda p: replace(p, sum=replace(p.sum, result_hash=Root(b"x" * 32))), "did not sign"),
    "another weight": (
        lambda p: replace(p, sum=replace(p.sum, inputs=(replace(p.sum.inputs[0], weight=1), *p.sum.inputs[1:]))),
        "did not sign",
    ),
    "one contribution fewer": (
        lambda p: replace(p, sum=replace(p.sum, inputs=p.sum.inputs[1:]), shown=p.shown[1:]),
        "did not sign",
    ),
    "contributions in another order": (
        lambda p: replace(p, sum=replace(p.sum, inputs=p.sum.inputs[::-1]), shown=p.shown[::-1]),
        "in another order",
    ),
    "a contribution twice": (
        lambda p: replace(p, sum=replace(p.sum, inputs=(p.sum.inputs[0], *p.sum.inputs)), shown=(p.shown[0], *p.shown)),
        "in another order",
    ),
    "a seal that nobody made": (lambda p: replace(p, seal=_other_bit(p.seal)), "did not sign"),
    "a chunk outside the slice": (lambda p: replace(p, chunk=0), "chunk 0 of slice"),
    "another chunk of the slice": (lambda p: replace(p, chunk=CHUNK + 1), "a leaf that is not chunk 3"),
    "another leaf of the result": (lambda p: replace(p, leaf=_other_bit(p.leaf)), "a leaf that is not chunk 2"),
    "another path in the result": (lambda p: replace(p, path=_other_bit(p.path)), "a leaf that is not chunk 2"),
    "no path in the result": (lambda p: replace(p, path=b""), "a leaf that is not chunk 2"),
    "other bytes of a contribution": (
        lambda p: replace(p, shown=(replace(p.shown[0], data=_other_bit(p.shown[0].data)), *p.shown[1:])),
        "a chunk that is not chunk 2",
    ),
    "another path in a contribution": (
        lambda p: replace(p, shown=(replace(p.shown[0], path=_other_bit(p.shown[0].path)), *p.shown[1:])),
        "a chunk that is not chunk 2",
    ),
    "two contributions in each other's place": (
        lambda p: replace(p, shown=(p.shown[1], p.shown[0], *p.shown[2:])),
        "a chunk that is not chunk 2",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_proof_in_which_anything_is_changed_convicts_nobody(name: str) -> None:
    world = summed()
    proof = world.proof_of_lie(with_one_wrong(world.chunks, world.check.means.result_codec))
    assert world.check.why_not(proof) == ""
    change, words = MUTATIONS[name]
    assert words in world.check.why_not(change(proof))


def test_what_another_key_or_the_same_key_in_another_run_signed_convicts_nobody() -> None:
    world = summed()
    proof = world.proof_of_lie(with_one_wrong(world.chunks, world.check.means.result_codec))
    for seal in (sealed_by(SIX[1], proof.sum), sealed_by(REDUCER, proof.sum, b"x" * 32)):
        assert "did not sign" in world.check.why_not(replace(proof, seal=seal))
    elsewhere = replace(world.check, signatures=SignatureCheck(HashVerifier(), RunId(b"y" * 32)))
    assert "did not sign" in elsewhere.why_not(proof), "nor a proof of another run"


def test_an_honest_sum_convicts_nobody_in_a_run_whose_chunks_are_cut_otherwise() -> None:
    world = summed()
    shorter = replace(world.check, means=replace(world.check.means, grid=ChunkGrid(3 * LENGTH, LENGTH)))
    assert world.check.why_not(world.proof()) != ""
    assert "expected one of 3" in shorter.why_not(world.proof())
