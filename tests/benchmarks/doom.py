"""The wrapper of a doomed peer's daemon (doomed_peer.py), which ends it at a point of a commit that it leads."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import peer.session.session
from averaging.network.seams.interfaces import BegunFile
from averaging.state.unit_log import UnitLog
from protocol.errors import LocalProtocolError, PotluckError
from protocol.identity.envelope import seal
from protocol.identity.identity import Identity
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.messages.messages import Settle
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import decode_certificate, decode_message, decode_record
from tests.benchmarks.points import DOOM_VARIABLE, DoomFile, Struck


class Doom:
    """The known facts about the commit that this process leads, and its end."""

    def __init__(self, file: DoomFile) -> None:
        self._file = file
        self._me = PeerId("")
        self._settled: Settle | None = None

    def hear(self, me: PeerId, payload: bytes) -> None:
        """A round message is being signed."""
        self._me = me
        try:
            message = decode_message(payload)
        except PotluckError:
            return  # a header of the exchange
        if isinstance(message, Settle) and self._is_ours(message.ballot):
            self._settled = message

    def _is_ours(self, ballot: Ballot) -> bool:
        return ballot == Ballot(0, self._me)

    async def around(self, step: str, base: CommitId, ballot: Ballot, write: Awaitable[None]) -> None:
        """A durable write that belongs to this step of the commit with this ballot."""
        is_ours = self._is_ours(ballot)
        if is_ours:
            self._strike_at(step, "before", base)
        await write
        if is_ours:
            self._strike_at(step, "after", base)

    async def around_result(self, base: CommitId, write: Awaitable[None]) -> None:
        """A result; it belongs to the commit that we settled, if it is one of that."""
        if self._settled is None or self._settled.base != base:
            await write
        else:
            await self.around("settled", base, self._settled.ballot, write)

    def _strike_at(self, step: str, side: str, base: CommitId) -> None:
        """End here if this is the point."""
        if self._file.is_meant(step, side) and self._file.take(Struck(self._me, step, side, base.hex(), time.time())):
            os.kill(os.getpid(), signal.SIGKILL)


def wrap_log(doom: Doom) -> None:
    """Each durable write to the rounds' log passes the doom before and after."""
    promise, ack = UnitLog.log_promise, UnitLog.log_ack
    certify, result = UnitLog.log_certificate, UnitLog.write_result

    async def log_promise(log: UnitLog, base: CommitId, ballot: Ballot) -> None:
        await doom.around("proposed", base, ballot, promise(log, base, ballot))

    async def log_ack(
        log: UnitLog, base: CommitId, ballot: Ballot, record: bytes, *, lone: bool = False, leaves: Sequence[bytes] = ()
    ) -> None:
        await doom.around("acked", base, ballot, ack(log, base, ballot, record, lone=lone, leaves=leaves))

    async def log_certificate(log: UnitLog, base: CommitId, certificate: bytes) -> None:
        ballot = decode_record(decode_certificate(certificate).record).ballot
        await doom.around("certified", base, ballot, certify(log, base, certificate))

    async def write_result(
        log: UnitLog, base: CommitId, result_hash: Root, data: bytes | memoryview, begun: BegunFile | None = None
    ) -> None:
        await doom.around_result(base, result(log, base, result_hash, data, begun))

    setattr(UnitLog, "log_promise", log_promise)  # noqa: B010 - mypy takes no plain assignment
    setattr(UnitLog, "log_ack", log_ack)  # noqa: B010
    setattr(UnitLog, "log_certificate", log_certificate)  # noqa: B010
    setattr(UnitLog, "write_result", write_result)  # noqa: B010


def wrap_signing(doom: Doom) -> None:
    """The doom first sees everything that the daemon signs for the round channel."""

    def heard(identity: Identity, *arguments: Any) -> bytes:
        doom.hear(identity.peer_id, arguments[-1])
        return seal(identity, *arguments)

    if vars(peer.session.session).get("seal") is not seal:
        raise LocalProtocolError(
            "peer.session.session signs by something else", "protocol.identity.envelope.seal, which is wrapped here"
        )
    setattr(peer.session.session, "seal", heard)  # noqa: B010


def install() -> None:
    """Doom this process as its environment says."""
    doom = Doom(DoomFile(Path(os.environ[DOOM_VARIABLE])))
    wrap_log(doom)
    wrap_signing(doom)
