from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId
from protocol.scores.score_result import MAX_PROMPTS, ScoreResult, decode_score, encode_score

SCORE = ScoreResult("facts", CommitId(b"c" * 32), 7, 1, 20, 9, 11)
SAID = ScoreResult("words", CommitId(b"c" * 32), 7, 0, 2, answers=((1, 2, 3), ()))


@pytest.mark.parametrize("score", [SCORE, SAID], ids=["questions", "prompts"])
def test_a_score_is_the_same_after_the_way(score: ScoreResult) -> None:
    assert decode_score(encode_score(score)) == score
    assert encode_score(score) == encode_score(score)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"task": ""}, "a task's name of 0 letters"),
        ({"commit": CommitId(b"c")}, "a commit id of 1 bytes"),
        ({"index": 0}, "index 0 of a score"),
        ({"part": 64}, "part 64"),
        ({"num_items": 0, "num_right": 0, "num_right_by_length": 0}, "a score of 0 items"),
        ({"num_right": 21}, "21 right of 20"),
        ({"num_right_by_length": 21}, "21 right of 20"),
        ({"answers": ((1,),) * (MAX_PROMPTS + 1)}, "65 answers"),
        ({"answers": ((1,) * 257,)}, "an answer of 257 tokens"),
        ({"answers": ((1 << 20,),)}, "token 1048576 in an answer"),
    ],
)
def test_a_score_out_of_its_bounds_is_refused(change: dict[str, Any], found: str) -> None:
    with pytest.raises(RemoteProtocolError, match=found):
        replace(SCORE, **change)


def test_bytes_that_are_no_score_are_refused() -> None:
    for data in (b"", b"\xff" * 20, encode_score(SCORE)[:10], bytes(200_000)):
        with pytest.raises(RemoteProtocolError):
            decode_score(data)
