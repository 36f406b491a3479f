"""The score of one part of a task at one commit, as a peer signs it, and its bytes.

The wire form is protocol/proto/coordinator.proto. `decode_score` checks bounds, so its result is safe to store. Tokens of answers are
the peer's own words: whoever shows them decodes and escapes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.ids import HASH_BYTES, CommitId
from protocol.pb import coordinator_pb2 as pb
from protocol.received import parse, require
from protocol.run.evaluate_section import MAX_ANSWER_TOKENS, MAX_PARTS

SCORE_DOMAIN: Final = "potluck score"

MAX_SCORE_BYTES: Final = 128 << 10
MAX_PROMPTS: Final = 64
"""Prompts of one task."""

MAX_QUESTIONS: Final = 1 << 20
_MAX_INDEX: Final = 1 << 60
_MAX_TASK_LETTERS: Final = 32
_MAX_TOKEN: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The score of one part of a task.

    Attributes:
        commit, index: the measured commit of the spine.
        part: of the task's parts, from 0.
        num_items: questions or prompts of the part.
        num_right: questions whose right choice has the greatest log-likelihood.
        num_right_by_length: the same, with each log-likelihood divided by the bytes of its choice.
        answers: of prompts, the tokens that the model wrote after each, in the order of the part's items.
    """

    task: str
    commit: CommitId
    index: int
    part: int
    num_items: int
    num_right: int = 0
    num_right_by_length: int = 0
    answers: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        require(0 < len(self.task) <= _MAX_TASK_LETTERS, f"a task's name of {len(self.task)} letters", "1 to 32")
        require(len(self.commit) == HASH_BYTES, f"a commit id of {len(self.commit)} bytes", f"{HASH_BYTES} bytes")
        require(0 < self.index <= _MAX_INDEX, f"index {self.index} of a score", "1 to 2^60")
        require(0 <= self.part < MAX_PARTS, f"part {self.part}", f"0 to {MAX_PARTS - 1}")
        require(0 < self.num_items <= MAX_QUESTIONS, f"a score of {self.num_items} items", f"1 to {MAX_QUESTIONS}")
        for right in (self.num_right, self.num_right_by_length):
            require(0 <= right <= self.num_items, f"{right} right of {self.num_items}", "not more than there are")
        require(len(self.answers) <= MAX_PROMPTS, f"{len(self.answers)} answers", f"at most {MAX_PROMPTS}")
        longest = max(map(len, self.answers), default=0)
        require(longest <= MAX_ANSWER_TOKENS, f"an answer of {longest} tokens", f"at most {MAX_ANSWER_TOKENS}")
        for token in (token for answer in self.answers for token in answer):
            require(0 <= token < _MAX_TOKEN, f"token {token} in an answer", f"0 to {_MAX_TOKEN - 1}")


def encode_score(result: ScoreResult) -> bytes:
    """The payload of a score's envelope."""
    body = pb.ScoreBody(
        task=result.task,
        commit=result.commit,
        index=result.index,
        part=result.part,
        num_items=result.num_items,
        num_right=result.num_right,
        num_right_by_length=result.num_right_by_length,
    )
    for answer in result.answers:
        body.answers.add(tokens=answer)
    return body.SerializeToString(deterministic=True)


def decode_score(data: bytes) -> ScoreResult:
    """A score from the payload of its envelope.

    Raises:
        RemoteProtocolError: no score, or a value out of its bounds.
    """
    body = parse(pb.ScoreBody, data, MAX_SCORE_BYTES)
    return ScoreResult(
        task=body.task,
        commit=CommitId(body.commit),
        index=body.index,
        part=body.part,
        num_items=body.num_items,
        num_right=body.num_right,
        num_right_by_length=body.num_right_by_length,
        answers=tuple(tuple(answer.tokens) for answer in body.answers[: MAX_PROMPTS + 1]),
    )
