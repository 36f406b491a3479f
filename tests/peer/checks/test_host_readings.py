"""The doctor's calls against a real coordinator's gRPC port, TLS included."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from averaging.host.daemon_views import DaemonView
from averaging.network.seams.clocks import SystemClock
from coordinator.progress.run_core import Phase
from peer.checks import host_readings
from peer.checks.doctor import run_doctor
from peer.checks.host_core import Answer, HostReadings, Line, NoAnswer, OwnPeer, PortTaken, ReachReport
from peer.checks.host_readings import read_host
from peer.checks.machine_core import Unread
from peer.membership.kept_addresses import keep
from peer.membership.saved_membership import SavedMembership, run_folder, save_membership
from peer.settings.config import PeerConfig
from protocol.host.calls import decode_admit_reply
from protocol.identity.credential import key_pem, make_tls_key
from protocol.identity.identity import Identity
from protocol.identity.identity_file import open_identity
from protocol.identity.invite import Invite, hash_secret
from protocol.pb import coordinator_pb2 as pb
from tests.coordinator.admission.test_open_door import TOML as OPEN_TOML
from tests.coordinator.host_world import SECRET, HostWorld
from tests.peer.checks.test_doctor import on_machine
from tests.peer.checks.test_machine_core import FINE
from tests.peer.membership.test_coordinator_client import free_address, serving


def invite(host: HostWorld, address: str, **changes: object) -> str:
    values: dict[str, object] = {
        "coordinator_addresses": (address,),
        "ca_certificate_der": host.authority.certificate_der,
        "run_id": host.run_id,
        "secret": SECRET,
        "expires_unix_s": int(SystemClock().unix_s()) + 600,
        "bootstrap": (),
        "max_uses": 10,
    }
    return Invite(**{**values, **changes}).encode()  # type: ignore[arg-type]


def config(folder: Path, **changes: object) -> PeerConfig:
    return PeerConfig(state_dir=folder / "peer", **{"listen_host": "127.0.0.1", **changes})


async def ask(settings: PeerConfig, text: str) -> HostReadings:
    readings = await trio.to_thread.run_sync(read_host, settings, text)
    assert readings is not None
    return readings


async def join_before(host: HostWorld, address: str, state_dir: Path) -> Identity:
    """As `potluck join` leaves it: identity and membership on disk."""
    with open_identity(state_dir / "identity") as held:
        reply = decode_admit_reply(await host.service.admit(host.admit_request(held.identity)))
    saved = SavedMembership.model_construct(
        addresses=(address,),
        ca_certificate_der=host.authority.certificate_der,
        tls_key_pem=key_pem(make_tls_key()),
        credential=reply.credential,
        manifest=reply.manifest,
        dataset=reply.dataset,
        start_record=b"",
        coordinator_peer_id=reply.coordinator_peer_id,
        bootstrap=(),
    )
    save_membership(run_folder(state_dir, host.run_id), saved)
    return held.identity


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_invite_leads_to_clock_and_release_and_is_not_used_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, _, address):
        readings = await ask(config(tmp_path), invite(host, address))
        answer = readings.answer
        assert isinstance(answer, Answer)
        assert answer.address == address
        assert abs(answer.ahead_s) < 5
        assert answer.release == answer.own_release != ""
        assert isinstance(readings.reach, ReachReport)
        assert (readings.reach.is_reached, readings.reach.seen_as) == (True, "127.0.0.1")
        assert readings.reach.is_own_address
        assert isinstance(readings.bulk, ReachReport)
        assert readings.bulk.is_reached
        assert readings.bulk.port != readings.reach.port
        assert isinstance(readings.line, Line)
        assert 0 < readings.line.up.num_bytes <= 8 << 20
        assert 0 < readings.line.down.num_bytes <= 8 << 20
        facts = host.ledger.invite(hash_secret(SECRET))
        assert facts is not None
        assert facts.uses == 0
        assert not (tmp_path / "peer").exists()


async def test_run_that_was_joined_is_known_without_an_invite_and_nothing_of_it_changes(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, _, address):
        await join_before(host, address, tmp_path / "peer")
        before = files_of(tmp_path / "peer")
        readings = await ask(config(tmp_path), "")
        assert isinstance(readings.answer, Answer)
        assert isinstance(readings.reach, ReachReport)
        assert isinstance(readings.line, Line)
        assert isinstance((await ask(config(tmp_path), invite(host, free_address(), secret=bytes(16)))).answer, Answer)
        assert files_of(tmp_path / "peer") == before


async def test_ports_are_those_that_the_peer_kept(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, _, address):
        await join_before(host, address, tmp_path / "peer")
        port, bulk = (int(free_address().rpartition(":")[2]) for _ in range(2))
        keep(config(tmp_path), (f"/ip4/127.0.0.1/tcp/{port}/p2p/me",), bulk, 0)
        readings = await ask(config(tmp_path), "")
        assert isinstance(readings.reach, ReachReport)
        assert isinstance(readings.bulk, ReachReport)
        assert (readings.reach.port, readings.bulk.port) == (port, bulk)


async def test_peer_that_runs_has_its_ports_and_no_other_is_tried_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        host_readings,
        "read_daemon",
        lambda folder: DaemonView("peer", str(folder), is_running=True, note="", status={"is_outbound_only": True}),
    )
    async with serving(tmp_path) as (host, _, address):
        await join_before(host, address, tmp_path / "peer")
        with socket.create_server(("127.0.0.1", 0)) as peers, socket.create_server(("127.0.0.1", 0)) as data:
            port, bulk = peers.getsockname()[1], data.getsockname()[1]
            keep(config(tmp_path), (f"/ip4/127.0.0.1/tcp/{port}/p2p/me",), bulk, 0)
            readings = await ask(config(tmp_path), "")
        assert (readings.reach, readings.bulk) == (OwnPeer(port, bulk, is_outbound_only=True), None)


async def test_port_that_is_taken_and_no_listening_are_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, _, address):
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            taken = config(tmp_path, listen_port=other.getsockname()[1])
            assert isinstance((await ask(taken, invite(host, address))).reach, PortTaken)
            bulk_taken = config(tmp_path, bulk_port=other.getsockname()[1])
            assert isinstance((await ask(bulk_taken, invite(host, address))).bulk, PortTaken)
        unheard = await ask(config(tmp_path, no_listen=True), invite(host, address))
        assert (unheard.reach, unheard.bulk) == (None, None)


@pytest.mark.parametrize("no_listen", [False, True])
async def test_invite_that_the_host_would_refuse_is_told_before_anybody_joins(tmp_path: Path, no_listen: bool) -> None:
    async with serving(tmp_path) as (host, _, address):
        wrong = invite(host, address, secret=b"another secret 1")
        readings = await ask(config(tmp_path, no_listen=no_listen), wrong)
        assert isinstance(readings.answer, Answer)
        assert readings.refusal is not None
        assert "did not make" in readings.refusal.found
        assert "ask the host for a new one" in readings.refusal.fix


async def test_the_line_of_an_open_run_leads_to_its_puzzle_and_is_no_refusal(tmp_path: Path) -> None:
    async with serving(tmp_path, OPEN_TOML) as (host, _, address):
        readings = await ask(config(tmp_path), invite(host, address, secret=b"", is_open=True))
        assert isinstance(readings.answer, Answer)
        assert (readings.refusal, readings.puzzle_bits) == (None, 2)
        away = (await ask(config(tmp_path), invite(host, free_address(), secret=b"", is_open=True))).answer
        assert isinstance(away, NoAnswer)
        assert away.is_needed


async def test_the_open_line_of_a_run_that_admits_no_strangers_is_told_before_anybody_joins(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, _, address):
        readings = await ask(config(tmp_path), invite(host, address, secret=b"", is_open=True))
        assert readings.refusal is not None
        assert readings.refusal.fix == "ask the host for an invite"


async def test_run_that_has_ended_is_told_before_anybody_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path) as (host, _, address):
        over = replace(host.tracker.state, phase=Phase.FINISHED)
        monkeypatch.setattr(type(host.tracker), "state", property(lambda _: over))
        readings = await ask(config(tmp_path), invite(host, address))
        assert readings.refusal is not None
        assert readings.refusal.found == "the run has ended; expected a run in progress"


async def test_checks_too_often_are_unread_and_the_rest_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, _, address):
        async with trio.open_nursery() as others:
            for _ in range(4):
                request = pb.DialBackRequest(invite_secret=SECRET, port=1, nonce=bytes(16)).SerializeToString()
                others.start_soon(host.service.dial_back, request, "127.0.0.1")
            await trio.testing.wait_all_tasks_blocked(0.05)
            others.cancel_scope.cancel()  # they are counted; nobody waits for their answers
        await host.service.bandwidth(pb.BandwidthRequest(invite_secret=SECRET).SerializeToString(), "10.0.0.1")
        readings = await ask(config(tmp_path), invite(host, address))
        assert isinstance(readings.reach, Unread)
        assert "try again in" in readings.reach.reason
        assert isinstance(readings.line, Unread)
        assert "somebody else's line" in readings.line.reason


async def test_host_that_is_away_is_needed_by_newcomers_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (host, _, _):
        text = invite(host, free_address())
        away = (await ask(config(tmp_path), text)).answer
        assert isinstance(away, NoAnswer)
        assert away.is_needed
        assert "the run's host does not answer at 127.0.0.1:" in away.found
        await join_before(host, free_address(), tmp_path / "peer")
        away = (await ask(config(tmp_path), "")).answer
        assert isinstance(away, NoAnswer)
        assert not away.is_needed


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"expires_unix_s": 1}, "the invite expired"), ({"ca_certificate_der": b"junk"}, "127.0.0.1")],
    ids=["expired", "junk authority"],
)
async def test_invite_that_is_no_good_is_told(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    async with serving(tmp_path) as (host, _, address):
        answer = (await ask(config(tmp_path), invite(host, address, **changes))).answer
        assert isinstance(answer, NoAnswer)
        assert says in answer.found


def test_neither_invite_nor_last_run_is_nothing_to_read(tmp_path: Path) -> None:
    assert read_host(config(tmp_path), "") is None


def test_damaged_membership_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "peer" / "runs" / "ab"
    folder.mkdir(parents=True)
    (folder / "membership.json").write_text("{")
    readings = read_host(config(tmp_path), "")
    assert readings is not None
    assert isinstance(readings.answer, NoAnswer)
    assert readings.answer.is_needed


@pytest.mark.parametrize("text", ["hello", "potluck1:AAAA", "potluck9:AAAA"])
def test_with_a_wrong_invite_the_local_lines_come_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    settings = on_machine(monkeypatch, FINE)
    assert run_doctor(settings, text, as_json=False) == 4
    *local, last = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in local] == ["ok  "] * 9
    assert last.split()[:4] == ["fail", "host", "an", "invite"]
    assert run_doctor(settings, text, as_json=True) == 4
    reported = json.loads(capsys.readouterr().out)
    assert (reported["worst"], reported["findings"][-1]["name"]) == ("fail", "host")
