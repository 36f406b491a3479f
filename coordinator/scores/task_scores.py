"""The host's scores: takes what peers sign, keeps it in the ledger, and shows the curves of the followed lineage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from averaging.data.tasks.task_file import Prompts, TaskFile, open_task
from averaging.data.tokenizer import ByteTokenizer
from coordinator.progress.chain_log import followed
from coordinator.progress.links.known_links import NOTHING_FOLLOWED, Followed
from coordinator.scores.score_core import KnownScore, ScoredTask, ScoreFacts, TaskCurve, check_score, task_curve
from coordinator.scores.score_rows import ScoreRow, put_score, score_rows
from protocol.errors import PotluckError, RefusedError, StorageError, TemporaryError
from protocol.identity.envelope import open_envelope
from protocol.ids import CommitId, PeerId, short
from protocol.scores.score_result import SCORE_DOMAIN, ScoreResult, decode_score

if TYPE_CHECKING:
    from averaging.data.shards import DatasetManifest, ShardCache
    from coordinator.ledger.ledger_writer import LedgerWriter
    from coordinator.progress.tracker import RunTracker
    from coordinator.run.run_files import RunTokenizer
    from protocol.identity.identity import Verifier
    from protocol.run.manifest import RunManifest

_log = structlog.get_logger()

MAX_ANSWER_LETTERS: Final = 2000
"""Longest text of an answer that is shown."""

Decode = Callable[[Sequence[int]], str]
"""Tokens of the run's tokenizer as text."""


def decoder_of(tokenizer: RunTokenizer | None) -> Decode:
    """How answers are read. Blocks.

    Raises:
        MachineError: tokenizers is not installed.
    """
    import numpy as np

    if tokenizer is None:
        return lambda tokens: ByteTokenizer().decode(np.array(tokens, dtype=np.uint32))
    from averaging.data.vocabulary import FileTokenizer

    opened = FileTokenizer(tokenizer.data, "the run's tokenizer", tokenizer.end)
    return lambda tokens: opened.decode(np.array(tokens, dtype=np.uint32))


def scored_tasks(manifest: RunManifest, dataset: DatasetManifest, cache: ShardCache) -> dict[str, ScoredTask]:
    """The tasks of a run, by name. Blocks.

    Raises:
        StorageError: a task's file is lost or damaged.
        RemoteProtocolError: it is no task.
    """
    found: dict[str, ScoredTask] = {}
    for section in manifest.config.evaluate:
        file: TaskFile = open_task(cache.whole(dataset.task(section.name)).read_bytes())
        if isinstance(file, Prompts):
            texts = tuple(item.text for item in file.items)
            found[section.name] = ScoredTask(
                section, len(file.items), vocab_size=file.vocab_size, prompts=tuple(map(shown_text, texts))
            )
        else:
            chance = sum(1 / len(item.choices) for item in file.items) / len(file.items)
            found[section.name] = ScoredTask(section, len(file.items), chance)
    return found


def shown_text(text: str) -> str:
    """A text of others in a form that is safe to show: bounded, and without control characters but line breaks."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text[:MAX_ANSWER_LETTERS])


class TaskScores:
    """The scores in memory, backed by the ledger. Call `restore` once before anything else."""

    def __init__(
        self,
        tasks: dict[str, ScoredTask],
        decode: Decode,
        tracker: RunTracker,
        manifest: RunManifest,
        ledger: LedgerWriter,
        verifier: Verifier,
    ) -> None:
        self._tasks, self._decode, self._tracker = tasks, decode, tracker
        self._run_id, self._total_tokens = manifest.run_id, manifest.config.run.total_tokens
        self._ledger, self._verifier = ledger, verifier
        self._known: dict[tuple[str, int, CommitId], KnownScore] = {}
        self._rows: dict[tuple[str, int, CommitId], ScoreRow] = {}
        self._refused: set[str] = set()
        self._curves: tuple[TaskCurve, ...] = ()
        self._curves_of: tuple[CommitId | None, int] = None, -1
        self._changes = 0

    @property
    def tasks(self) -> dict[str, ScoredTask]:
        """The run's tasks, by name."""
        return self._tasks

    async def restore(self) -> None:
        """Read the scores of earlier processes of the host.

        Raises:
            StorageError: the ledger cannot be read, or an envelope in it does not verify.
        """
        for row in await self._ledger.run(score_rows):
            try:
                self._note(row, self._opened(row.envelope)[1])
            except PotluckError as error:
                raise StorageError(
                    f"a score in the ledger cannot be read ({error.found})", "what was written", "restore a copy"
                ) from error

    def _opened(self, sealed: bytes) -> tuple[PeerId, ScoreResult]:
        envelope = open_envelope(
            sealed, verifier=self._verifier, domain=SCORE_DOMAIN, run_id=self._run_id, now_unix_ms=None
        )
        return envelope.sender, decode_score(envelope.payload)

    async def take(self, sealed: bytes) -> None:
        """Take a score that an admitted peer signed.

        Raises:
            RefusedError, RemoteProtocolError: it is forged, or says what cannot be, or is not this peer's to measure.
            TemporaryError: the commit is not known here yet, or it is another peer's turn first.
            StorageError: the ledger refused; the peer will bring it again.
        """
        peer, result = self._opened(sealed)
        chain = self._tracker.chain
        link = chain.link(result.commit) if chain is not None else None
        if chain is None or link is None:
            raise TemporaryError(
                f"a score of commit {short(result.commit)}, which is not known here", "a commit of the run", "later"
            )
        head, live = self._tracker.state.index, self._tracker.live_peers() | {peer}
        facts = ScoreFacts(self._run_id, self._tasks, self._total_tokens, head, live)
        try:
            ahead = check_score(peer, result, link, facts)
        except RefusedError as error:
            self._tell_refused(error)
            raise
        standing = self._known.get((result.task, result.part, result.commit))
        if standing is not None and standing.peer in (peer, *ahead):
            return
        row = ScoreRow(result.task, result.part, link.index, link.commit, link.total_tokens, peer, sealed)
        await self._ledger.run(partial(put_score, row=row))
        self._note(row, result)
        _log.info("score_taken", task=result.task, index=link.index, part=result.part + 1, peer=peer)

    def _tell_refused(self, error: PotluckError) -> None:
        if error.found not in self._refused and len(self._refused) < 1000:
            self._refused.add(error.found)
            _log.warning("score_refused", reason=error.one_line())

    def _note(self, row: ScoreRow, result: ScoreResult) -> None:
        answers = tuple(shown_text(self._decode(answer)) for answer in result.answers)
        known = KnownScore(result, row.peer, row.total_tokens, answers)
        self._known[known.place], self._rows[known.place] = known, row
        self._changes += 1

    @property
    def changes(self) -> int:
        """A number that changes with each score."""
        return self._changes

    def curves(self) -> tuple[TaskCurve, ...]:
        """Each task's curve on the followed lineage, in the order of run.toml."""
        head = self._tracker.state.head
        if self._curves_of != (head, self._changes):
            followed = self._followed()
            rows = self._rows
            known = [
                score for place, score in self._known.items() if followed.has(rows[place].commit, rows[place].index)
            ]
            self._curves = tuple(
                task_curve(task, [score for score in known if score.result.task == name])
                for name, task in self._tasks.items()
            )
            self._curves_of = head, self._changes
        return self._curves

    def signed(self) -> list[tuple[ScoreRow, KnownScore]]:
        """The scores on the followed lineage, as they stand in the ledger and as they are understood, by rounds."""
        followed = self._followed()
        rows = [row for row in self._rows.values() if followed.has(row.commit, row.index)]
        rows.sort(key=lambda row: (row.index, row.task, row.part))
        return [(row, self._known[row.task, row.part, row.commit]) for row in rows]

    def _followed(self) -> Followed:
        chain = self._tracker.chain
        return followed(chain) if chain is not None else NOTHING_FOLLOWED
