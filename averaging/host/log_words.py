"""Log events in sentences for people, and the memory of what was said. The log file keeps the events as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from averaging.storage.full_disk import is_of_full_disk
from protocol.tables import printable

AGAIN_AFTER_S: Final = 600.0
"""A warning that comes back within this time is not repeated on the screen."""

MOST_SAID: Final = 500
"""Sentences that are remembered. The oldest are forgotten first."""

_NUMBERS: Final = re.compile(r"[0-9a-f]{6,}|[0-9][0-9.,:]*")
_APART: Final = frozenset(("event", "level", "timestamp", "exc_info", "exception"))

_SAID_BY_ITS_REASON: Final = frozenset(
    (
        "holder_not_counted", "local_work", "log_set_aside", "model_is_older", "nobody_can_connect", "run_paused",
        "start_found_again", "unit_frozen", "waits_for_state",
    )
)  # fmt: skip
"""Events whose reason is a whole sentence."""

_ON_THE_SCREEN: Final = frozenset(("apart", "state_differs", "worker_died"))
"""Events that a daemon's screen tells by itself."""

_WORDS: Final[Mapping[str, str]] = {
    "bulk_connection_not_accepted": "a connection for weights and data was not accepted",
    "codecs_not_compiled": "compression runs without its compiled part",
    "credential_has_ended": "this peer's credential has ended",
    "credential_not_renewed": "this peer's credential was not renewed",
    "exchange_refused": "a peer refused its part of the round's averaging",
    "generation_damaged": "a saved state is damaged",
    "generation_not_written": "the newest state was not saved",
    "hashes_not_fetched": "a peer's list of checksums did not come",
    "heads_not_forgotten": "an old note on the disk was not removed",
    "heads_not_noted": "the newest round was not noted on the disk",
    "heldout_refused": "a held-out loss was not recorded",
    "history_not_kept": "events and counts of peers were not written to the ledger",
    "kept_chunks_damaged": "parts of an unfinished download are damaged and are fetched again",
    "lane_not_everywhere": "a round of a pipeline lane did not reach every stage",
    "lane_share_lost": "work of a pipeline lane does not count",
    "ledger_has_gaps": "the ledger lacks rounds",
    "lineage_changed": "the host follows another branch of the rounds",
    "lineage_not_changed": "the host could not follow another branch of the rounds",
    "lone_not_followed": "a round that one peer made alone is not followed",
    "not_adopted": "a round was not applied here",
    "not_caught_up": "a peer did not give its state",
    "p2pd_died": "the network process ended and is started again",
    "p2pd_restart_failed": "the network process did not start again",
    "peer_banned": "the host banned a peer",
    "proof_not_kept": "a proof against a peer was not saved",
    "report_refused": "the host refused this peer's report",
    "residual_bounded": "what compression left out was cut to its bound",
    "reducer_convicted": "a peer averaged falsely and is shut out",
    "residual_damaged": "what compression left out earlier is damaged on the disk",
    "residual_dropped": "what compression left out earlier is dropped",
    "residual_not_saved": "what compression left out was not saved",
    "result_damaged": "a saved round is damaged and is fetched again",
    "slice_failed": "a part of the round's averaging failed here",
    "slice_without_contributions": "a part of the round had nothing to average",
    "spine_forked_too_deep": "another branch of the rounds begins too far back to follow",
    "switch_not_logged": "a change of branch was not noted on the disk",
    "task_failed": "a step of the round failed",
    "unused_run_replaced": "the run in this folder was replaced",
    "voter_convicted": "a peer signed two contradicting things in one round and is shut out",
    "votes_not_read": "earlier votes could not be read",
}
"""Words for events whose names only their authors understand. Every other event is said by its name."""


def warning_sentence(event: Mapping[str, object]) -> str:
    """One line for a person: "warning: the newest state was not saved: a reason". Empty for what the screen tells by itself. A full
    disk is one of these.
    """
    if event.get("event") in _ON_THE_SCREEN or is_of_full_disk(str(event.get("reason"))):
        return ""
    name, level = str(event.get("event", "")), str(event.get("level", "warning"))
    values = {key: value for key, value in event.items() if key not in _APART}
    if "name" in values:
        values.pop("peer", None)
    reason = values.pop("reason", None)
    words = "" if name in _SAID_BY_ITS_REASON and reason else _WORDS.get(name, name.replace("_", " "))
    text = ": ".join(printable(part) for part in (words, reason) if part)
    if not (name in _SAID_BY_ITS_REASON and reason) and values:
        details = [f"{key.replace('_', ' ')} {_shown(value)}" for key, value in values.items()]
        text += f" ({', '.join(details)})"
    trouble = event.get("exc_info") or event.get("exception")
    more = "; the log has more: potluck logs" if trouble else ""
    return f"{'warning' if level == 'warning' else 'error'}: {text}{more}"


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(printable(part) for part in value)
    return printable(value)


class AlreadySaid:
    """The sentences that were said lately. Two that differ only in numbers are the same."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def is_new(self, sentence: str, now_s: float) -> bool:
        """Whether to say it now. Counts it as said if so. `now_s`: monotonic seconds."""
        key = _NUMBERS.sub("#", sentence)
        said_s = self._said.get(key)
        if said_s is not None and now_s - said_s < AGAIN_AFTER_S:
            return False
        self._said.pop(key, None)
        self._said[key] = now_s
        if len(self._said) > MOST_SAID:
            del self._said[next(iter(self._said))]
        return True
