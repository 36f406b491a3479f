"""The own addresses of a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from averaging.network.libp2p.libp2p_session import Session
from protocol.errors import TemporaryError


async def test_machine_without_a_network_interface_is_told_in_a_line_and_not_as_a_bug() -> None:
    async def none(*, latest: bool) -> list[str]:
        raise ValueError("No multiaddrs found for peer 12D3KooX")  # as hivemind does

    session = cast("Session", SimpleNamespace(_p2p=SimpleNamespace(get_visible_maddrs=none)))
    with pytest.raises(TemporaryError, match="no network interface of this machine is up"):
        await Session.addresses(session)
