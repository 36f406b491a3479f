from __future__ import annotations

from protocol.kinds.codec_table import (
    CODECS,
    CONTRIBUTION_CODECS,
    RESULT_CODECS,
    SPARSE_CODECS,
    SPARSE_RESULT_CODECS,
    CodecFacts,
    leaves_out,
)


def test_dense_codecs_leave_nothing_out_and_sparse_ones_do() -> None:
    assert not any(map(leaves_out, ("fp32", "fp16", "int8", "int4", "e3m0")))
    assert all(map(leaves_out, ("topk", "top6", "top12", "top25")))


def test_a_name_that_nobody_knows_leaves_nothing_out() -> None:
    assert not leaves_out("zip")
    assert not leaves_out("")


def test_every_codec_is_for_contributions_or_for_results() -> None:
    assert {*CONTRIBUTION_CODECS, *RESULT_CODECS} == set(CODECS)
    assert set(CONTRIBUTION_CODECS) - set(RESULT_CODECS) == set(SPARSE_CODECS)
    assert {facts.name for facts in SPARSE_RESULT_CODECS} == set(RESULT_CODECS) - set(CONTRIBUTION_CODECS)


def test_a_result_has_room_for_as_many_members_values_as_its_stride_leaves() -> None:
    (sparse,) = (CODECS[name] for name in SPARSE_CODECS)
    assert all(facts.room * facts.stride == sparse.stride for facts in SPARSE_RESULT_CODECS)


def test_only_what_writes_all_32_bits_of_all_values_is_exact() -> None:
    assert [facts.name for facts in CODECS.values() if facts.is_exact] == ["fp32"]


def test_lengths_round_up_to_whole_scales_and_bytes() -> None:
    facts = CodecFacts("four bits", 4, block=128)
    assert [facts.encoded_bytes(num) for num in (0, 1, 2, 3, 128, 129)] == [0, 5, 5, 6, 68, 73]
