from __future__ import annotations

import pytest

from protocol.errors import RemoteProtocolError
from protocol.host.host_statements import MAX_MILESTONES, HostStatements, RevocationNews


def test_fingerprints_that_are_not_whole_make_no_statements() -> None:
    with pytest.raises(RemoteProtocolError, match="fingerprints"):
        HostStatements(known_revocations=b"short")
    with pytest.raises(RemoteProtocolError, match="fingerprints"):
        HostStatements(known_milestones=b"short")
    with pytest.raises(RemoteProtocolError, match="fingerprints"):
        RevocationNews(known_revocations=b"short")


def test_more_milestones_or_start_than_a_host_needs_make_no_statements() -> None:
    with pytest.raises(RemoteProtocolError, match="milestones"):
        HostStatements(milestones=(b"",) * (MAX_MILESTONES + 1))
    with pytest.raises(RemoteProtocolError, match="bytes of start"):
        HostStatements(start_record=bytes(1 << 20))


def test_what_is_brought_goes_beside_what_was_known() -> None:
    whole = HostStatements(b"start", bytes(8), (b"ban",), bytes(16), (b"milestone",))
    assert whole.brought.beside(whole.known) == whole
    assert (whole.known.milestones, whole.brought.known_milestones) == ((), b"")
