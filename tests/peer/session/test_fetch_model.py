"""`potluck checkpoint fetch`, with the host's word on whether this peer may."""

from __future__ import annotations

from typing import cast

import pytest

from peer.membership.coordinator_client import CoordinatorClient
from peer.session.fetch_model import roots_of_host
from protocol.errors import PotluckError, RefusedError, UnreachableError


class _Host:
    def __init__(self, error: PotluckError) -> None:
        self._error = error

    async def list_checkpoints(self) -> None:
        raise self._error


async def test_a_host_that_refuses_a_peer_ends_its_fetch_and_one_that_is_away_does_not() -> None:
    banned = RefusedError("the host banned this peer from the run", "a peer in good standing", "ask the host")
    with pytest.raises(RefusedError, match="banned"):
        await roots_of_host(cast(CoordinatorClient, _Host(banned)))
    assert await roots_of_host(cast(CoordinatorClient, _Host(UnreachableError("no answer", "a host", "later")))) == {}
