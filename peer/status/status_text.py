"""A peer's status for people: a few lines of text."""

from __future__ import annotations

from typing import Final

from peer.status.status import PeerStatus
from protocol.tables import bits, duration, in_bytes, printable, several, whole

_LEAST_TOLD_S: Final = 5.0


def state_told(status: PeerStatus) -> str:
    """As "training", or "waiting for 3 min": what is not training is told with how long it has been so."""
    if status.state == "training" or status.state_s < _LEAST_TOLD_S:
        return status.state
    return f"{status.state} for {duration(status.state_s)}"


def next_round(status: PeerStatus) -> str:
    """How far the next round is; empty where none is to come."""
    if not status.round_target_tokens:
        return ""
    ready = f"next round: {status.round_tokens_ready:,} of {status.round_target_tokens:,} tokens ready"
    if status.round_share >= 1.0:
        return f"{ready}, due"
    left_s = status.round_longest_s - status.round_waited_s
    # with nothing to average no round is opened, however late
    return f"{ready}, at the latest in {duration(left_s)}" if status.round_tokens_ready and left_s > 0 else ready


def of_the_run(status: PeerStatus) -> str:
    """How much of the run is done, and when it all will be; empty while the run is not known."""
    if not status.target_total_tokens:
        return ""
    # cut, not rounded: a run is complete with its last token, and its last round brings some more
    share = f"{min(100, 100 * status.total_tokens // status.target_total_tokens)}% of the run"
    return share if status.eta_s is None else f"{share}, {duration(status.eta_s)} to go"


def _bytes_by_unit(status: PeerStatus) -> str:
    """What each unit's rounds and states took of the line, since the process started."""
    told = [
        f"{printable(unit)} {in_bytes(up)} up, {in_bytes(down)} down" for unit, (up, down) in status.unit_bytes.items()
    ]
    return f"of it {'; '.join(told)}"


def status_lines(status: PeerStatus) -> list[str]:
    """Who it is, where it stands and why, what it did, what it takes of the machine."""
    target = (
        f" of {status.target_total_tokens:,} tokens, {of_the_run(status)}" if status.target_total_tokens else " tokens"
    )
    lines = [
        f"{status.name} in {printable(status.run or 'no run yet')}: {state_told(status)}, {printable(status.reason)}",
        f"round {status.index}, {status.total_tokens:,}{target}",
        *([next_round(status)] if status.round_target_tokens else []),
        f"training {whole(status.tokens_per_s)} tokens/s, {bits(status.loss)} bits per byte",
        f"yours: {status.tokens_trained:,} tokens trained, counted in {several(status.rounds_counted, 'round')}",
        f"traffic {in_bytes(status.bytes_up)} up, {in_bytes(status.bytes_down)} down",
        *([_bytes_by_unit(status)] if status.unit_bytes else []),
        f"disk {in_bytes(status.disk_bytes)}, at most {in_bytes(status.disk_bound_bytes)}",
        f"memory {in_bytes(status.memory_bytes)}",
    ]
    if status.allowed_reason and status.allowed_reason != status.reason:
        lines.append(f"controls: {printable(status.allowed_reason)}")
    if status.apart:
        lines.append(printable(status.apart))
    if status.trouble:
        lines.append(f"trouble: {printable(status.trouble)}")
    if status.round_waiting:
        lines.append(f"rounds: {printable(status.round_waiting)}")
    if status.lane_reason:
        could = f"; could do {whole(status.could_tokens_per_s)} tokens/s" if status.could_tokens_per_s else ""
        lines.append(f"lanes: {printable(status.lane_reason)}{could}")
    if status.owed_tokens:
        lines.append(
            f"owed: {whole(status.owed_tokens)} tokens of a round that is over are to count in this stage's next one"
        )
    if status.move_reason:
        lines.append(f"stage: {printable(status.move_reason)}")
    for unit in status.units:
        lines.append(f"{unit.unit}: round {unit.index}, {unit.holders} hold it; {printable(unit.waiting)}")
    if status.host_heard_ago_s is not None and status.credential_left_s is not None:
        away = " (away)" if status.is_host_away else ""
        left = status.credential_left_s
        good = f"good for {duration(left)}" if left > 0 else "ended"
        lines.append(f"host heard {duration(status.host_heard_ago_s)} ago{away}; credential {good}; bans {status.bans}")
    if status.restarted:
        lines.append(printable(status.restarted))
    if status.worker_restarts:
        lines.append(f"the training process was brought back {several(status.worker_restarts, 'time')}")
    if not status.is_sound:
        lines.append("the state differs from the one that the run attests; it is being made again")
    return lines
