"""How many bytes a round moves at a member, and which link can carry them. Pure; every formula cites its source.

Rules: R11 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import Final

from protocol.kinds.codec_table import CODECS
from protocol.rounds.messages.bounds import MAX_CHUNKS

MOST_INTERVAL_S: Final = 86_400.0
"""The longest interval that a manifest may name: a day."""


MOST_CHUNK_ELEMENTS: Final = 1 << 17
"""Values of a chunk: a newcomer fetches a state chunk by chunk, with its momentum, and each is one frame of a stream."""


def chunks_problem(num_values: int, chunk_elements: int) -> tuple[str, str] | None:
    """Why no round, or no join, of a run could succeed, and a number with which they would; None if nothing is wrong.

    Args:
        num_values: of its largest unit.
        chunk_elements: values of a chunk.
    """
    named = f"round.chunk_elements is {chunk_elements}"
    if chunk_elements > MOST_CHUNK_ELEMENTS:
        why = "no newcomer could fetch the state, of which each chunk is one frame"
        return f"{named}: {why}", f"at most {MOST_CHUNK_ELEMENTS}"
    num_chunks, least = -(-num_values // chunk_elements), -(-num_values // MAX_CHUNKS)
    if num_chunks <= MAX_CHUNKS:
        return None
    found = f"{named}, and {num_values} values averaged at once have {num_chunks} chunks: no round could name them"
    if least > MOST_CHUNK_ELEMENTS:
        most = MAX_CHUNKS * MOST_CHUNK_ELEMENTS
        return found, f"at most {most} values of a unit, as the stages of a pipeline have"
    return found, f"at least {least}"


def update_bytes(codec: str, num_parameters: int, chunk_parameters: int) -> int:
    """Bytes of one vector on the wire: each chunk is encoded by itself (averaging/codecs, averaging/rounds/lineage/retention.py)."""
    num_whole, rest = divmod(num_parameters, chunk_parameters)
    facts = CODECS[codec]
    return num_whole * facts.encoded_bytes(chunk_parameters) + facts.encoded_bytes(rest)


def round_bytes(update_bytes: int, result_bytes: int, num_members: int, *, reduces: bool) -> tuple[int, int]:
    """Bytes that a member sends in a round and that it receives, if all reduce equal slices.

    It sends its delta to the other reducers, and the mean of its own slice to the other members. It receives as much: (n - 1) / n
    of a delta and of a mean. A member that takes no inbound connections reduces nothing: it sends one delta and receives one mean.
    Heartbeats and certificates are not counted.
    """
    if num_members < 2:
        return 0, 0
    if not reduces:
        return update_bytes, result_bytes
    each_way = ceil((num_members - 1) * (update_bytes + result_bytes) / num_members)
    return each_way, each_way


@dataclass(frozen=True, slots=True)
class LinkNumbers:
    """A manifest's numbers of its rounds and of the slowest link that is to carry them.

    Attributes:
        mbit_per_s: of the link, in each direction.
        each_way_bytes: of a round with as many members as the run takes. With several units, of all together: each has one round in
            the time of a round.
        longest_interval_s: the most that a round, and its exchange, may take (R11).
        target_utilisation: the share that "auto" rounds are to keep; 0 for rounds of a fixed size.
        is_blocking: whether training waits for an exchange.
    """

    mbit_per_s: float
    each_way_bytes: int
    longest_interval_s: float
    target_utilisation: float = 0.0
    is_blocking: bool = False

    @property
    def carried_s(self) -> float:
        """Seconds that a round's bytes take on the link, with nothing else on it."""
        return self.each_way_bytes * 8 / (self.mbit_per_s * 1e6)

    @property
    def exchange_share(self) -> float:
        """Share of a round that its exchange may take: all of it, or that of "auto" rounds (protocol/rounds/schedule/target.py)."""
        if not self.target_utilisation:
            return 1.0
        return 1.0 - self.target_utilisation if self.is_blocking else self.target_utilisation

    @property
    def shortest_s(self) -> float:
        """Seconds of the shortest round on this link."""
        return self.carried_s / self.exchange_share


def needed_mbit_per_s(each_way_bytes: int, longest_interval_s: float) -> float:
    """The slowest link that carries a round within the longest interval, rounded up to three digits."""
    exact = each_way_bytes * 8 / longest_interval_s / 1e6
    step = 10.0 ** (len(str(int(exact))) - 3) if exact >= 1.0 else 0.001
    return round(ceil(exact / step) * step, 3)


def too_slow(link: LinkNumbers) -> str:
    """Why this link cannot carry the run's smallest round, with a number that would work; "" if it can. All rounds move as many
    bytes, whatever their steps, so the smallest is one that is due after the longest interval. An "auto" round lasts so long that
    its exchange takes no more than its share.
    """
    interval_s = link.longest_interval_s
    if link.shortest_s <= interval_s:
        return ""
    needed = needed_mbit_per_s(link.each_way_bytes, interval_s * link.exchange_share)
    lasts_s, takes = ceil(link.shortest_s), f"which takes this link {ceil(link.carried_s)} s"
    longer = f"round.longest_interval_s of at least {lasts_s}, " if lasts_s <= MOST_INTERVAL_S else ""
    if link.target_utilisation:
        takes += f": with round.target_utilisation {link.target_utilisation:g} it would last {lasts_s} s"
    return (
        f"round.link_mbit_per_s {link.mbit_per_s:g}: a round is {link.each_way_bytes / 1e6:.1f} MB up and as much down, {takes} "
        f"of round.longest_interval_s {interval_s:g}: expected a link of at least {needed:g}, {longer}{_kept(link)}"
        "or a codec of fewer bits"
    )


def _kept(link: LinkNumbers) -> str:
    """The most of the time that "auto" rounds could keep on this link, or the least if training goes on meanwhile."""
    share = link.carried_s / link.longest_interval_s
    if not link.target_utilisation or share >= 0.99:
        return ""
    if link.is_blocking:
        return f"a target_utilisation of at most {floor(100.0 * (1.0 - share)) / 100.0:g}, "
    return f"a target_utilisation of at least {ceil(100.0 * share) / 100.0:g}, "
