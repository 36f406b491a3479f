"""Log-likelihoods and answers by other parameters than those in training, in the memory that training needs anyway.

Shapes: B sequences, T tokens, N values of all parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from time import monotonic
from typing import cast

import torch

from peer.models.decoder import Decoder
from peer.training.evaluation import Evaluation
from peer.training.ranks.text_share import TextShare
from peer.training.replica.replica import Replica
from peer.training.worker_channel import Scored, ScoreOrder
from protocol.errors import LocalProtocolError


class Scorer:
    """Obeys orders to score sequences. All ranks of a replica do the same ones together.

    Args:
        context_tokens: the longest sequence that the model reads.
    """

    def __init__(self, replica: Replica, evaluation: Evaluation, share: TextShare, context_tokens: int) -> None:
        self._replica, self._evaluation, self._share = replica, evaluation, share
        self._context_tokens = context_tokens

    def scored(self, values: Sequence[torch.Tensor], order: ScoreOrder, micro_batch: int) -> Scored:
        """Score the order's sequences by other parameters, at most `micro_batch` at a time. The replica's own do not change.

        Args:
            values: as of `Replica.standing_in`.

        Raises:
            EvaluationDoesNotFit: not even one sequence fits beside the model.
            LocalProtocolError: a model of experts.
        """
        if not isinstance(self._replica.model, Decoder):
            raise LocalProtocolError("a task for a model of experts", "one whole decoder")
        begin_s, score = monotonic(), self._answers if order.num_answer_tokens else self._log_likelihoods
        found = self._evaluation.within_memory(values, micro_batch, lambda size: score(order, size))
        return found.model_copy(update={"took_s": monotonic() - begin_s})

    @property
    def _model(self) -> Decoder:
        return cast(Decoder, self._replica.model)

    def _log_likelihoods(self, order: ScoreOrder, size: int) -> Scored:
        found: list[float] = []
        for begin in range(0, len(order.sequences), size):
            batch = order.sequences[begin : begin + size]
            ends = [(len(tokens), num) for tokens, num in zip(batch, order.num_scored[begin:], strict=False)]
            tokens_BT, marks_BT = self._batch(batch), torch.zeros((len(batch), self._width(batch)), dtype=torch.bool)
            for row, (length, num) in enumerate(ends):
                marks_BT[row, length - num : length] = True
            inputs_BT, targets_BT = self._replica.cut(tokens_BT)
            _, marked_BT = self._replica.cut(marks_BT.to(tokens_BT.device))
            with self._replica.computing():
                sums_B = self._model.log_likelihoods(inputs_BT, targets_BT, marked_BT)
            found += self._over_ranks(sums_B.tolist())
        return Scored(log_likelihoods=tuple(value if math.isfinite(value) else None for value in found))

    def _answers(self, order: ScoreOrder, size: int) -> Scored:
        answers: list[tuple[int, ...]] = []
        for begin in range(0, len(order.sequences), size):
            answers += self._continued(order.sequences[begin : begin + size], order)
        return Scored(answers=tuple(answers))

    def _continued(self, begun: Sequence[Sequence[int]], order: ScoreOrder) -> list[tuple[int, ...]]:
        """The likeliest continuation of each text, token after token. All texts go on until the last one has ended."""
        texts, answers = [list(text) for text in begun], [list[int]() for _ in begun]
        while any(not self._has_ended(answer, order) for answer in answers):
            chosen = self._next([text[-self._context_tokens :] for text in texts], order.vocab_size)
            for text, answer, token in zip(texts, answers, chosen, strict=True):
                if not self._has_ended(answer, order):
                    text.append(token)
                    answer.append(token)
        return [tuple(answer) for answer in answers]

    def _has_ended(self, answer: Sequence[int], order: ScoreOrder) -> bool:
        return len(answer) >= order.num_answer_tokens or (bool(answer) and answer[-1] == order.end)

    def _next(self, texts: Sequence[Sequence[int]], vocab_size: int) -> list[int]:
        windows = [(*text, 0) for text in texts]  # the place after the last token, whose value is not read
        tokens_BT, marks_BT = self._batch(windows), torch.zeros((len(texts), self._width(windows)), dtype=torch.bool)
        for row, text in enumerate(texts):
            marks_BT[row, len(text)] = True
        inputs_BT, _ = self._replica.cut(tokens_BT)
        _, marked_BT = self._replica.cut(marks_BT.to(tokens_BT.device))
        with self._replica.computing():
            chosen_B = self._model.likeliest(inputs_BT, marked_BT, vocab_size)
        return [round(token) for token in self._over_ranks([float(token) for token in chosen_B.tolist()])]

    def _width(self, sequences: Sequence[Sequence[int]]) -> int:
        """Tokens of a padded row. Ranks that share sequences take whole contexts only."""
        whole = self._context_tokens + 1
        return whole if self._share.context > 1 else max(len(tokens) for tokens in sequences)

    def _batch(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """(B, T + 1) int64. Places after a sequence's end are never looked at, since the model is causal."""
        tokens_BT = torch.zeros((len(sequences), self._width(sequences)), dtype=torch.int64)
        for row, tokens in enumerate(sequences):
            tokens_BT[row, : len(tokens)] = torch.tensor(tokens)
        return tokens_BT.to(self._replica.device)

    def _over_ranks(self, values: Sequence[float]) -> list[float]:
        """Each value added up over ranks that share sequences. Ranks that read other text in training all compute the same here."""
        if self._share.is_all:
            return list(values)
        return [self._replica.sum_over_ranks(value) / self._share.readers for value in values]
