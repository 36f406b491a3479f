from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from averaging.start_state import start_root
from peer.joining import check_clock_again, check_invite, check_start, invite_of_last_run
from protocol.credential import BACKDATE_S, make_ca
from protocol.decoder_schema import DecoderConfig, decoder_schema
from protocol.errors import ConfigError, RefusedError, UnreachableError, VersionError
from protocol.ids import PeerId, Root, RunId
from protocol.invite import Invite
from protocol.rounds.messages import StartRecord, StartUnit
from protocol.tensor_schema import ChunkGrid
from protocol.wire import encode_body

CONFIG = DecoderConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=32, context_tokens=16)
SCHEMA = decoder_schema(CONFIG)
GRID = ChunkGrid(SCHEMA.num_elements, 500)
MADE_S = 1_700_000_000.0
INVITE = Invite(
    coordinator_addresses=("127.0.0.1:7000",),
    ca_certificate_der=make_ca(b"c" * 32, now_unix_s=MADE_S).certificate_der,
    run_id=RunId(b"r" * 32),
    secret=b"s" * 16,
    expires_unix_s=int(MADE_S) + 3600,
    bootstrap=(),
    max_uses=1,
)


class FakeClient:
    """A coordinator whose clock is so far ahead, or that fails."""

    def __init__(self, answer: float | Exception) -> None:
        self.answer = answer

    async def clock_ahead_s(self) -> float:
        await trio.lowlevel.checkpoint()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def _start(fingerprint: bytes, root: Root) -> bytes:
    return encode_body(StartRecord(bytes(32), (StartUnit(SCHEMA.unit, fingerprint, root),), (PeerId("p"),), 100, 0))


def test_a_start_with_our_own_tensors_and_first_state_is_joined() -> None:
    root = start_root(SCHEMA, GRID, 1)
    check_start(_start(SCHEMA.fingerprint(), root), SCHEMA, root)


def test_a_run_of_another_schema_is_refused_with_the_release_to_install() -> None:
    root = start_root(SCHEMA, GRID, 1)
    with pytest.raises(VersionError, match=r"other tensors.*same release"):
        check_start(_start(bytes(32), root), SCHEMA, root)


def test_a_run_that_begins_from_other_bytes_is_refused() -> None:
    with pytest.raises(VersionError, match="first state"):
        check_start(_start(SCHEMA.fingerprint(), start_root(SCHEMA, GRID, 2)), SCHEMA, start_root(SCHEMA, GRID, 1))


def test_a_fresh_invite_passes_until_it_expires() -> None:
    check_invite(INVITE, MADE_S)
    check_invite(INVITE, MADE_S + 3600)
    with pytest.raises(RefusedError, match=r"expired 10 minutes ago.*new invite"):
        check_invite(INVITE, MADE_S + 3600 + 600)


def test_a_clock_from_before_the_run_was_made_is_called_wrong_and_not_the_certificate() -> None:
    check_invite(INVITE, MADE_S - BACKDATE_S)
    with pytest.raises(RefusedError, match=r"clock is at least 5 minutes behind.*set the clock"):
        check_invite(INVITE, MADE_S - BACKDATE_S - 300)


def test_an_invite_without_a_certificate_is_one_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"CA certificate that cannot be read.*new one"):
        check_invite(replace(INVITE, ca_certificate_der=b"no certificate"), MADE_S)


def test_without_an_invite_and_without_an_earlier_run_the_user_is_asked_for_the_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no invite, and no run joined from .*potluck join potluck1:"):
        invite_of_last_run(tmp_path)


@pytest.mark.parametrize(("ahead_s", "side"), [(600.0, "600 s behind"), (-600.0, "600 s ahead of")])
async def test_a_clock_that_went_wrong_since_the_last_session_is_told(ahead_s: float, side: str) -> None:
    with pytest.raises(RefusedError, match=rf"clock is {side} the coordinator's.*set the clock"):
        await check_clock_again(FakeClient(ahead_s))  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [0.0, 119.0, -119.0, UnreachableError("away"), RefusedError("somebody else")])
async def test_a_clock_within_bounds_or_a_host_that_is_away_keeps_nobody_out(answer: float | Exception) -> None:
    await check_clock_again(FakeClient(answer))  # type: ignore[arg-type]


async def test_another_version_is_told_to_a_peer_that_comes_back() -> None:
    with pytest.raises(VersionError):
        await check_clock_again(FakeClient(VersionError("a coordinator with protocol version 2")))  # type: ignore[arg-type]
