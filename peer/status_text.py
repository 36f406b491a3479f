"""A peer's status for people: a few lines of text."""

from __future__ import annotations

from peer.status import PeerStatus
from protocol.tables import bits, duration, in_bytes, printable, whole


def status_lines(status: PeerStatus) -> list[str]:
    """Who it is, where it stands and why, what it did, what it takes of the machine."""
    target = f" of {status.target_total_tokens:,}" if status.target_total_tokens else ""
    lines = [
        f"{status.name} in {printable(status.run or 'no run yet')}: {status.state}, {printable(status.reason)}",
        f"round {status.index}, {status.total_tokens:,}{target} tokens",
        f"training {whole(status.tokens_per_s)} tokens/s, {bits(status.loss)} bits per byte",
        f"yours: {status.tokens_trained:,} tokens trained, counted in {status.rounds_counted} rounds",
        f"traffic {in_bytes(status.bytes_up)} up, {in_bytes(status.bytes_down)} down",
        f"disk {in_bytes(status.disk_bytes)}, at most {in_bytes(status.disk_bound_bytes)}",
        f"memory {in_bytes(status.memory_bytes)}",
    ]
    if status.apart:
        lines.append(printable(status.apart))
    if status.round_waiting:
        lines.append(f"rounds: {printable(status.round_waiting)}")
    if status.host_heard_ago_s is not None and status.credential_left_s is not None:
        away = " (away)" if status.is_host_away else ""
        left = status.credential_left_s
        good = f"good for {duration(left)}" if left > 0 else "ended"
        lines.append(f"host heard {duration(status.host_heard_ago_s)} ago{away}; credential {good}; bans {status.bans}")
    if status.restarted:
        lines.append(printable(status.restarted))
    if status.worker_restarts:
        lines.append(f"the training process was brought back {status.worker_restarts} times")
    if not status.is_sound:
        lines.append("the state differs from the one that the run attests; it is being made again")
    return lines
