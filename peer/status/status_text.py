"""A peer's status for people: a few lines of text."""

from __future__ import annotations

from typing import Final

from peer.cards.card_status import rows_of_cards
from peer.status.status import PeerStatus
from protocol.estimates.unit_disk import disk_phrase
from protocol.grids import JOULES_PER_KWH, carbon_kg
from protocol.host.work_rules import BY_INVITE
from protocol.identity.chosen_name import called
from protocol.identity.standing import PeerStanding
from protocol.tables import bits, done_percent, duration, in_bytes, printable, several, whole

RUN_IS_COMPLETE: Final = "the run is complete"
"""How the reason of a peer that is finished begins."""


def staying(*, is_host_here: bool, has_host_all: bool, most_s: float) -> str:
    """The reason of a peer that stays after the last commit of a run.

    Args:
        is_host_here: whether the host answers.
        has_host_all: whether it has written the last checkpoint.
        most_s: how long the peer stays while it gives nothing to anybody, in seconds.
    """
    if has_host_all:
        return f"{RUN_IS_COMPLETE}; staying until everybody has the last commit"
    if is_host_here:
        return f"{RUN_IS_COMPLETE}; staying until the host has the last checkpoint"
    return f"{RUN_IS_COMPLETE}; staying for {duration(most_s)} for the host, which does not answer"


def run_is_over(model_command: str, *, has_host_all: bool) -> str:
    """The reason of a peer that leaves a complete run. A host that was away would wait for the last rounds without its help.

    Args:
        model_command: gives the owner the run's model.
        has_host_all: whether the host has written the last checkpoint.
    """
    untold = (
        ""
        if has_host_all
        else "; the host does not have the last rounds yet: when it is back, run potluck join once more"
    )
    return f"{RUN_IS_COMPLETE}; its model: {model_command}{untold}"


TEXT_CHANNEL: Final = "shards"
"""Carries the run's data. Its name stands here again, since the status must not wait for the network's modules."""

_LEAST_REPORTED_S: Final = 5.0
_OUTBOUND: Final = (
    "others cannot connect to this machine; its work counts in full; `potluck doctor` says how to change it"
)
_STANDINGS: Final = {
    "stranger": "stranger; its work weighs at most the median, that of all strangers together a quarter; counted work makes a member",
    "member": "member; its work weighs as that of a keeper, and it sums slices for others",
}
"""The word for a standing and what follows from it. Nothing is said of a keeper, which everybody is in a run by invite."""

_UNSOUND: Final = "the state differs from the one that the run attests; it is being rebuilt"


def own_name(status: PeerStatus) -> str:
    """The peer's own name, with the nickname that its owner chose."""
    return called(status.name, status.nickname)


def is_over(status: PeerStatus) -> bool:
    """Whether this peer's part in the run is over: the run is complete, or the peer left or ended. Nothing is to come then."""
    return status.state == "finished" or _has_left(status)


def _has_left(status: PeerStatus) -> bool:
    """Whether this is the last status of a process that is gone: it holds no memory now, and hears nobody."""
    return status.state.startswith(("left on ", "ended on "))


def state_phrase(status: PeerStatus) -> str:
    """The state in words: "training", or "waiting for 3 min" with the time spent in any other state. A pause has its end in its
    reason.
    """
    if status.state == "paused" and status.reason.startswith("paused"):
        return status.reason
    if status.state == "training" or status.state_s < _LEAST_REPORTED_S:
        return status.state
    return f"{status.state} for {duration(status.state_s)}"


def state_and_reason(status: PeerStatus) -> str:
    """The state in words, and why it is so where that is worth saying."""
    if status.state == "finished":  # a line of its own says that the run is complete
        return "; ".join(filter(None, (status.state, status.reason.removeprefix(RUN_IS_COMPLETE).removeprefix("; "))))
    phrase = state_phrase(status)
    if status.state == "training" or phrase == status.reason:
        return phrase
    is_one_phrase = phrase == status.state and status.reason.startswith("for ")  # "waiting" and what it waits for
    return f"{phrase} {status.reason}" if is_one_phrase else f"{phrase}: {status.reason}"


def next_round(status: PeerStatus) -> str:
    """Progress of the next round; empty if none is to come."""
    if not status.round_target_tokens or is_over(status):
        return ""
    ready = f"next round: {status.round_tokens_ready:,} of {status.round_target_tokens:,} tokens ready"
    if status.round_share >= 1.0:
        return f"{ready}, due"
    left_s = status.round_longest_s - status.round_waited_s
    # With nothing to average no round is opened, however late it is.
    return f"{ready}, at the latest in {duration(left_s)}" if status.round_tokens_ready and left_s > 0 else ready


def time_left(seconds: float | None) -> str:
    """As "3 min to go", or that this is not known yet."""
    return "time left: not known yet" if seconds is None else f"{duration(seconds)} to go"


def unusual(status: PeerStatus) -> list[str]:
    """Each thing out of the ordinary in a sentence, the most urgent first; empty while all is well."""
    found = [
        status.trouble,
        status.offline,
        "" if status.offline or is_disk_full(status) else status.apart,
        "" if status.is_sound else _UNSOUND,
        "" if status.state == "paused" or is_over(status) else status.allowed_reason,
        f"the training process is {status.worker_state}: {status.worker_reason}" if _is_worker_away(status) else "",
        f"the training process was started again {several(status.worker_restarts, 'time')}"
        if status.worker_restarts
        else "",
    ]
    return [printable(text) for text in found if text]


def is_disk_full(status: PeerStatus) -> bool:
    """Whether the disk is full. Its consequences are not told beside it."""
    return status.trouble.startswith("the disk at ") and " is full: " in status.trouble


def _is_worker_away(status: PeerStatus) -> bool:
    return status.state == "training" and status.worker_state in ("starting", "restarting")


def ending(status: PeerStatus) -> str:
    """The part of a peer in its complete run, over all its starts; empty for any other. The reason of the state names the
    command that gives the model.
    """
    if status.state != "finished":
        return ""
    # The last status of an older release has the counts of its last start alone.
    tokens = max(status.run_tokens_counted, status.tokens_counted)
    rounds = max(status.run_rounds_counted, status.rounds_counted)
    share = tokens / status.total_tokens if status.total_tokens else 0.0
    counted = f"{rounds} of {several(status.index, 'round')} counted your work"
    return f"The run is complete. You trained {tokens:,} of its tokens ({share:.0%}); {counted}."


def round_line(status: PeerStatus) -> str:
    """The newest round in one line: its members, our part, the loss, and how far the run is."""
    last = status.last_round
    if last is None:
        return ""
    own = last.weights.get(status.peer)
    part = "your work is not in it" if own is None else f"your part {own:.0%}"
    loss = [] if status.loss is None else [f"loss {bits(status.loss)} bits per byte"]
    parts = [f"round {last.index}: {several(len(last.members), 'peer')} counted", part, *loss]
    if status.target_total_tokens:
        parts.append(of_the_run(status))
    if last.coverage < 1.0:
        parts.append(f"{1.0 - last.coverage:.0%} of the work did not arrive")
    if last.left_out:
        parts.append(f"{last.left_out:.0%} of yours disagreed with most others' and does not count")
    return printable(", ".join(parts))


def of_the_run(status: PeerStatus) -> str:
    """The share of the run that is done, and the expected time of its end; empty while the run is not known."""
    if not status.target_total_tokens:
        return ""
    share = f"{done_percent(status.total_tokens, status.target_total_tokens)} of the run"
    return share if status.eta_s is None or is_over(status) else f"{share}, {time_left(status.eta_s)}"


def progress(status: PeerStatus) -> str:
    """Progress of the run in rounds and tokens, as far as it is known before the state on disk is read."""
    if status.state == "joining" and not status.head:
        return (
            f"round: not known yet, {status.target_total_tokens:,} tokens in all" if status.target_total_tokens else ""
        )
    if not status.target_total_tokens:
        return f"round {status.index}, {status.total_tokens:,} tokens"
    target = f"{status.total_tokens:,} of {status.target_total_tokens:,} tokens"
    return f"round {status.index}, {target}, {of_the_run(status)}"


def speed(status: PeerStatus) -> str:
    """Tokens per second and the loss of the latest steps."""
    loss = "no loss yet" if status.loss is None else f"{bits(status.loss)} bits per byte"
    return f"{whole(status.tokens_per_s)} tokens/s, {loss}"


def card_line(status: PeerStatus) -> str:
    """How the card trains and why, the memory used, the share of its peak, and what did not go by plan; empty before it is known."""
    used = f"{in_bytes(status.card_used_bytes)} used" if status.card_used_bytes is not None else ""
    share = f"{status.mfu:.0%} of the card's peak" if status.mfu is not None else ""
    told = ", ".join(filter(None, (used, share)))
    return "; ".join(filter(None, (status.card_plan, told, skipped(status), status.compile_note)))


def skipped(status: PeerStatus) -> str:
    """How many steps were not taken, and why; empty for none."""
    return (
        f"{several(status.skipped_steps, 'step')} skipped, whose gradient was not finite"
        if status.skipped_steps
        else ""
    )


def energy_line(status: PeerStatus) -> str:
    """Energy since this process started, with its carbon; why it is not known where no meter can be read."""
    if status.energy_joules is None:
        return f"not known: {status.energy_note}" if status.energy_note else ""
    kwh, each = status.energy_joules / JOULES_PER_KWH, status.joules_per_token
    parts = [f"{kwh:.3g} kWh since the start", f"{each:.3g} J a token" if each is not None else ""]
    if status.grid_g_per_kwh is not None:
        parts.append(f"{carbon_kg(kwh, status.grid_g_per_kwh):.3g} kg of CO2")
    return "; ".join(filter(None, (", ".join(filter(None, parts)), status.energy_note)))


def sources_read(status: PeerStatus) -> str:
    """Each source's share of the text that was trained on here; empty without a mixture."""
    total = sum(status.source_tokens)
    shares = (f"source {number}: {count / total:.0%}" for number, count in enumerate(status.source_tokens, 1) if total)
    return ", ".join(shares)


def status_rows(status: PeerStatus) -> list[tuple[str, str]]:
    """Labelled rows: the work done, the resources used, and problems that the owner should know of."""
    rows = [
        ("training", "" if is_over(status) else speed(status)),
        ("plan", card_line(status)),
        ("layout", status.layout),
        *rows_of_cards(status.cards),
        (
            "yours",
            f"{status.tokens_trained:,} tokens trained since the start, counted in {several(status.rounds_counted, 'round')}",
        ),
        ("sources", sources_read(status)),
        ("traffic", _traffic(status)),
        ("disk", _disk(status)),
        ("memory", "" if _has_left(status) else in_bytes(status.memory_bytes)),
        ("energy", energy_line(status)),
        ("last round", _last_round(status)),
        ("rounds", _round_waits(status)),
        *_run_rows(status),
        ("host", _host(status)),
        ("reach", _OUTBOUND if status.is_outbound_only else ""),
        ("standing", _standing(status)),
        *_audit_rows(status),
        ("team", status.team),
        ("start", status.restarted),
        ("root", status.state_root[:16]),
    ]
    return [(name, printable(text)) for name, text in rows if text]


def status_lines(status: PeerStatus) -> list[str]:
    """The identity and the state, what is unusual, progress, then the rows of `status_rows`."""
    first = f"{own_name(status)} in {status.run or 'no run yet'}: {state_and_reason(status)}"
    lines = [printable(first), *unusual(status), *filter(None, (ending(status), progress(status)))]
    lines += list(filter(None, [next_round(status)]))
    return lines + [f"{name}: {text}" for name, text in status_rows(status)]


def _round_waits(status: PeerStatus) -> str:
    """The thing that the next round waits for; empty where another line tells it, or the cause of it."""
    is_in_next_round = status.round_target_tokens > 0 and status.round_waiting.startswith("training: round ")
    is_told = status.offline or is_disk_full(status) or is_in_next_round or is_over(status)
    return "" if is_told else status.round_waiting


def _disk(status: PeerStatus) -> str:
    """The disk that is used, and the limit that a dry run has told; no limit before there are rounds."""
    used = in_bytes(status.disk_bytes)
    return f"{used}, {disk_phrase(status.disk_files_bound_bytes)}" if status.disk_files_bound_bytes else used


def _traffic(status: PeerStatus) -> str:
    """Bytes since the process started, and the part of each unit's rounds and states."""
    direct = f", {status.direct_share:.0%} of it straight to other peers" if status.direct_share is not None else ""
    units = [f"{unit} {_moved(up, down)}" for unit, (up, down) in status.unit_bytes.items()]
    of_it = f"; of it {'; '.join(units)}" if units else ""
    return f"{_moved(status.bytes_up, status.bytes_down)}{direct}{of_it}"


def _moved(up: int, down: int) -> str:
    return f"{in_bytes(up)} up, {in_bytes(down)} down"


def _last_round(status: PeerStatus) -> str:
    last = status.last_round
    if last is None:
        return ""
    share = f"your share {last.weights.get(status.peer, 0.0):.0%}"
    left_out = f" ({last.left_out:.0%} of yours left out)" if last.left_out else ""
    lost = f", {last.lost:.1%} of the mean had no room" if last.lost else ""
    texts = [each for each in last.bulk if each.channel == TEXT_CHANNEL]
    text_up, text_down = sum(each.bytes_up for each in texts), sum(each.bytes_down for each in texts)
    beside = f", beside {_moved(text_up, text_down)} of the run's data" if text_up or text_down else ""
    moved = f"{_moved(last.bytes_up - text_up, last.bytes_down - text_down)}{beside}"
    return f"{several(len(last.members), 'member')}, {share}{left_out}, {moved}{lost}"


def _standing(status: PeerStatus) -> str:
    """The standing of a peer that came by the open door, and why its work makes no member of it."""
    words = _STANDINGS.get(status.standing, "")
    stays = status.standing == PeerStanding.STRANGER.word and status.untellable
    return f"{words}, but not here: {status.untellable}; {BY_INVITE}" if stays else words


def _audit_rows(status: PeerStatus) -> list[tuple[str, str]]:
    """Rows of a keeper that does others' work again."""
    done = f"{status.audits} of others' work; the last one of {status.last_audit}" if status.audits else ""
    return [("audits", done), ("audit now", status.audit_now)]


def _run_rows(status: PeerStatus) -> list[tuple[str, str]]:
    """Rows that only runs of experts and pipelines have."""
    capacity = f"; could do {whole(status.could_tokens_per_s)} tokens/s" if status.could_tokens_per_s else ""
    owed = f"{whole(status.owed_tokens)} tokens of a finished round are to count in this stage's next one"
    units = [
        (unit.unit, f"round {unit.index}, {unit.holders} hold it; {printable(unit.waiting)}") for unit in status.units
    ]
    return [
        ("lanes", f"{status.lane_reason}{capacity}" if status.lane_reason else ""),
        ("owed", owed if status.owed_tokens else ""),
        ("stage", status.move_reason),
        *units,
    ]


def _host(status: PeerStatus) -> str:
    if status.host_heard_ago_s is None or status.credential_left_s is None or _has_left(status):
        return ""
    away, left = " (away)" if status.is_host_away else "", status.credential_left_s
    good = f"good for {duration(left)}" if left > 0 else "ended"
    banned = f"; {several(status.bans, 'peer')} banned" if status.bans else ""
    return f"heard {duration(status.host_heard_ago_s)} ago{away}; credential {good}{banned}"
