"""The calls of strangers, who have no invite: a puzzle, and a place at the open door. Bytes in, bytes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from coordinator.policy.admission import AdmissionFacts, request_error
from coordinator.progress.run_core import Phase
from protocol.errors import RefusedError
from protocol.host.calls import MAX_REQUEST_BYTES
from protocol.identity.credential import open_request
from protocol.identity.identity import KEY_BYTES
from protocol.ids import PeerId
from protocol.pb import coordinator_pb2 as pb
from protocol.received import parse

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock
    from coordinator.admission.hosted_run import HostedRun
    from coordinator.admission.open_door import OpenDoor
    from coordinator.progress.tracker import RunTracker


class DoorCalls:
    """Reads strangers' requests and hands them to the door, if the run has one. `welcome` makes the reply of a credential."""

    def __init__(
        self,
        run: HostedRun,
        tracker: RunTracker,
        clock: Clock,
        door: OpenDoor | None,
        welcome: Callable[[bytes], bytes],
    ) -> None:
        self._run = run
        self._tracker = tracker
        self._clock = clock
        self._door = door
        self._welcome = welcome

    async def challenge(self, request: bytes) -> bytes:
        """A puzzle for a stranger.

        Raises:
            RefusedError, VersionError, RunOverError: this run has no open door, or the request does not fit it.
        """
        body = parse(pb.ChallengeRequest, request, MAX_REQUEST_BYTES)
        door = self._open_door(body)
        if len(body.public_key) != KEY_BYTES:
            raise RefusedError(f"a public key of {len(body.public_key)} bytes", f"{KEY_BYTES} bytes", "join again")
        return pb.ChallengeReply(challenge=door.challenge(body.public_key).raw).SerializeToString()

    async def enter(self, request: bytes, caller_host: str) -> bytes:
        """Admit a stranger that solved its puzzle. Raises as `challenge` and as `OpenDoor.enter`."""
        body = parse(pb.EnterRequest, request, MAX_REQUEST_BYTES)
        door, run, now_unix_s = self._open_door(body), self._run, self._clock.unix_s()
        asked = open_request(body.credential_request, verifier=run.verifier, run_id=run.run_id, now_unix_s=now_unix_s)
        return self._welcome(await door.enter(asked, body.challenge, body.answer, caller_host))

    def _open_door(self, body: pb.ChallengeRequest | pb.EnterRequest) -> OpenDoor:
        """The door, if there is one and the request fits the run. Raises as `challenge`."""
        facts = AdmissionFacts(
            peer=PeerId(""),
            protocol_version=body.protocol_version,
            is_same_run=body.run_id == self._run.run_id,
            peer_unix_s=body.unix_s,
            invite=None,
            is_admitted=False,
            is_banned=False,
            is_run_over=self._tracker.state.phase is Phase.FINISHED,
            num_live_peers=0,
            max_peers=self._run.max_peers,
        )
        if error := request_error(facts, self._clock.unix_s()):
            raise error
        if self._door is None:
            raise RefusedError("a stranger at a run by invite", "a peer with an invite", "ask the host for an invite")
        return self._door
