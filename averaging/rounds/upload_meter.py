"""How long the upload of one attempt takes, and how fast it goes."""

from __future__ import annotations


class UploadMeter:
    """How long an upload takes: measured when it ends, extrapolated while it does not (rule 11: late arrivals are samples)."""

    def __init__(self) -> None:
        self._begun_s = 0.0
        self._ended_s = 0.0
        self._wanted: dict[int, int] = {}
        self._sent: set[int] = set()

    def begin(self, now_s: float) -> None:
        """The attempt begins."""
        self._begun_s = now_s

    def want(self, chunk: int, num_bytes: int) -> None:
        """A chunk of so many bytes is to be sent."""
        self._wanted[chunk] = num_bytes

    def spare(self, chunk: int) -> None:
        """A chunk need not be sent: its reducer has it already, or its slice has gone to another."""
        if chunk not in self._sent:
            self._wanted.pop(chunk, None)

    def sent(self, chunk: int, num_bytes: int, now_s: float) -> None:
        """A chunk left; one that is sent again counts once."""
        self._wanted[chunk] = num_bytes
        self._sent.add(chunk)
        self._ended_s = now_s

    def seconds(self, now_s: float) -> float | None:
        """The time of the whole upload; None when there is nothing to tell."""
        wanted_bytes = sum(self._wanted.values())
        sent_bytes = sum(self._wanted[chunk] for chunk in self._sent)
        if not wanted_bytes:
            return None
        if sent_bytes >= wanted_bytes:
            return max(0.001, self._ended_s - self._begun_s)
        elapsed_s = now_s - self._begun_s
        return elapsed_s * wanted_bytes / sent_bytes if sent_bytes else 2.0 * elapsed_s

    def bytes_per_s(self, now_s: float) -> int:
        """The pace so far; 0 when nothing was sent."""
        seconds = self.seconds(now_s)
        return round(sum(self._wanted.values()) / seconds) if seconds and self._sent else 0
