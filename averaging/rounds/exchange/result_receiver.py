"""A member takes a slice's result from its reducer: frame by frame, each chunk checked on arrival to be fit to apply."""

from __future__ import annotations

from collections.abc import Callable

from averaging.arithmetic.batched_codec import span_bytes
from averaging.arithmetic.slot_buffer import SlotBuffer
from averaging.network.seams.interfaces import BegunFile, Stream
from averaging.rounds.exchange.exchange_context import ExchangeContext
from averaging.rounds.lineage.next_state import SliceBytes
from averaging.rounds.traffic.batches import Batch, split_batch
from averaging.rounds.traffic.result_ref import NamedResult
from averaging.state.unit_log import WRITE_BYTES
from protocol.errors import RemoteProtocolError
from protocol.merkle import leaf_hash, merkle_root
from protocol.rounds.messages.messages import SliceSpec


class RefusedResult(RemoteProtocolError):
    """A reducer's result cannot be used. `is_useless`: these are the bytes that it named, but they do not decode to finite
    values.
    """

    def __init__(self, error: RemoteProtocolError, *, is_useless: bool = False) -> None:
        super().__init__(error.found, error.expected, error.remedy)
        self.is_useless = is_useless


async def take_result(
    part: SliceSpec,
    named: NamedResult,
    stream: Stream,
    room: SlotBuffer,
    hashes: list[bytes],
    tools: ExchangeContext,
    came: Callable[[memoryview], None],
    begun: BegunFile,
) -> SliceBytes:
    """The named bytes, in the memory of `room`, fit to apply; `came` is called with each frame.

    Most bytes are in the file `begun` when the last ones arrive, because everybody waits for the last member that has them on
    disk. `hashes` are those of chunks that are in `room` already; those of arriving chunks are added, as long as all are fit.

    Raises:
        RefusedResult: other bytes than were named, or bytes that do not decode to finite values.
        RemoteProtocolError: the stream ends before all of them.
    """
    useless, unfit = None, list[bytes]()
    left_bytes = len(span_bytes(tools.result_codec, tools.grid, part.first_chunk + len(hashes), part.stop_chunk))

    def place(num_bytes: int) -> memoryview:
        if num_bytes > left_bytes:  # no memory is taken for it
            raise RefusedResult(RemoteProtocolError(f"a frame of {num_bytes} bytes", f"at most {left_bytes}, the rest"))
        return room.take(num_bytes)

    while len(hashes) + len(unfit) < part.stop_chunk - part.first_chunk:
        frame, chunk = await stream.receive_view(place), part.first_chunk + len(hashes) + len(unfit)
        if frame is None:
            raise RemoteProtocolError(f"a result that ends before chunk {chunk}", f"chunks up to {part.stop_chunk}")
        came(frame)
        left_bytes -= len(frame)
        batch = _batch(frame, chunk, part, tools)
        try:
            found = await tools.examine(chunk, [data for _, data in batch])
            (hashes if useless is None else unfit).extend(found)
        except RemoteProtocolError as error:  # the rest shows whether these are the named bytes
            useless = error
            unfit += [leaf_hash(data) for _, data in batch]
        if useless is None and len(room.taken) - begun.num_bytes >= WRITE_BYTES:
            await begun.add(room.taken[begun.num_bytes :])
    if merkle_root([*hashes, *unfit]) != named.result_hash:
        raise RefusedResult(RemoteProtocolError("result bytes with another hash", "the bytes that were signed"))
    if useless is not None:
        raise RefusedResult(useless, is_useless=True)
    return SliceBytes(room.taken, tuple(hashes))


def _batch(frame: memoryview, first_chunk: int, part: SliceSpec, tools: ExchangeContext) -> Batch:
    try:
        return split_batch(frame, first_chunk, part.stop_chunk, tools.result_codec, tools.grid)
    except RemoteProtocolError as error:
        raise RefusedResult(error) from error
