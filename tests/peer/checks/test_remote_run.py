"""What a newcomer is told of a run before joining, by a real coordinator's gRPC port, TLS included."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from peer.checks.remote_run import ask_for_run
from protocol.errors import PotluckError, RefusedError, RemoteProtocolError, UnreachableError
from protocol.identity.invite import hash_secret
from tests.coordinator.host_world import SECRET
from tests.peer.checks.test_host_readings import config, files_of, invite, join_before
from tests.peer.membership.test_coordinator_client import free_address, serving


async def test_whoever_holds_an_invite_is_told_the_run_and_the_invite_is_not_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the world's host has no data; what counts is that they are checked against the signed manifest
    monkeypatch.setattr("peer.checks.remote_run.parse_dataset", lambda data, dataset_id: (data, dataset_id))
    async with serving(tmp_path) as (host, _, address):
        asked = await trio.to_thread.run_sync(ask_for_run, config(tmp_path), invite(host, address))
        assert asked is not None
        assert asked.manifest.run_id == host.run_id
        assert asked.dataset == (b"{}", asked.manifest.dataset_id)  # type: ignore[comparison-overlap]
        facts = host.ledger.invite(hash_secret(SECRET))
        assert facts is not None
        assert facts.uses == 0
        assert not (tmp_path / "peer").exists()
        await join_before(host, address, tmp_path / "peer")
        before = files_of(tmp_path / "peer")
        again = await trio.to_thread.run_sync(ask_for_run, config(tmp_path), invite(host, address, secret=bytes(16)))
        assert again == asked
        assert files_of(tmp_path / "peer") == before


@pytest.mark.parametrize(
    ("changes", "error", "found"),
    [
        ({"secret": b"another secret 1"}, RefusedError, "invite"),
        ({"expires_unix_s": 1}, RefusedError, "expired"),
        ({"coordinator_addresses": (free_address(),)}, UnreachableError, "no coordinator answers"),
    ],
    ids=["a guess", "expired", "nobody there"],
)
async def test_what_stands_in_the_way_is_one_line(
    tmp_path: Path, changes: dict[str, object], error: type[PotluckError], found: str
) -> None:
    async with serving(tmp_path) as (host, _, address):
        line = invite(host, address, **changes)
        with pytest.raises(error, match=found):
            await trio.to_thread.run_sync(ask_for_run, config(tmp_path), line)


async def test_data_that_the_manifest_does_not_name_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, _, address):
        with pytest.raises(RemoteProtocolError):
            await trio.to_thread.run_sync(ask_for_run, config(tmp_path), invite(host, address))


def test_without_an_invite_nobody_is_asked(tmp_path: Path) -> None:
    assert ask_for_run(config(tmp_path), "") is None
