from __future__ import annotations

from pathlib import Path

import pytest

from averaging.network.libp2p.p2pd import (
    CIRCUIT_BYTES,
    CIRCUIT_S,
    MAX_RESERVATIONS,
    P2pdOptions,
    p2pd_arguments,
    p2pd_program,
    start_p2pd,
)
from averaging.network.seams.asyncio_thread import open_asyncio_thread
from protocol.errors import ConfigError, MachineError
from protocol.identity.identity import Identity


def _identity_file(folder: Path) -> Path:
    file = folder / "identity"
    file.write_bytes(Identity(bytes([7]) * 32).libp2p_private_key_bytes())
    file.chmod(0o600)
    return file


def test_a_volunteer_is_told_to_relay_for_nobody() -> None:
    flags = p2pd_arguments(P2pdOptions(Path("/id")), Path("/tmp/x.sock"))
    assert {"-relayService=0", "-autoRelay=0"} <= set(flags)


RELAY = "/ip4/10.0.0.1/tcp/4001/p2p/12D3KooWQAqQX2YQexMmQapfgrFV88PTtqkyiRo1LjpZoVbkjQYR"


def test_a_hidden_peer_takes_a_place_at_the_relays_and_nobody_else_does() -> None:
    hidden = p2pd_arguments(P2pdOptions(Path("/id"), relays=(RELAY,), is_hidden=True), Path("/tmp/x.sock"))
    assert {"-relay=1", "-autoRelay=1", "-relayService=0", f"-trustedRelays={RELAY}"} <= set(hidden)
    reachable = p2pd_arguments(P2pdOptions(Path("/id"), relays=(RELAY,)), Path("/tmp/x.sock"))
    assert {"-relay=1", "-autoRelay=0", "-relayService=0"} <= set(reachable)


def test_a_relay_bounds_the_bytes_the_time_and_the_number_of_its_circuits() -> None:
    flags = p2pd_arguments(P2pdOptions(Path("/id"), serves_circuits=True), Path("/tmp/x.sock"))
    assert {"-relayService=1", f"-relayDataLimit={CIRCUIT_BYTES}", f"-relayTimeLimit={CIRCUIT_S}s"} <= set(flags)
    assert f"-relayMaxReservations={MAX_RESERVATIONS}" in flags


def test_a_peer_without_inbound_connections_listens_nowhere() -> None:
    flags = p2pd_arguments(P2pdOptions(Path("/id"), accepts_inbound=False), Path("/tmp/x.sock"))
    assert "-noListenAddrs=1" in flags
    assert "-dhtClient=1" in flags
    assert not [flag for flag in flags if flag.startswith("-hostAddrs")]


def test_the_router_is_asked_for_a_port_only_outside_loopback() -> None:
    assert "-natPortMap=0" in p2pd_arguments(P2pdOptions(Path("/id")), Path("/tmp/x.sock"))
    public = P2pdOptions(Path("/id"), listen=("/ip4/0.0.0.0/tcp/4001",))
    assert "-natPortMap=1" in p2pd_arguments(public, Path("/tmp/x.sock"))


def test_an_announced_port_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="explicit port"):
        p2pd_arguments(P2pdOptions(Path("/id"), announce=("/ip4/1.2.3.4/tcp/0",)), Path("/tmp/x.sock"))


def test_a_relative_identity_is_still_found_from_the_folder_in_which_it_runs() -> None:
    assert f"-id={Path.cwd() / 'state/identity'}" in p2pd_arguments(
        P2pdOptions(Path("state/identity")), Path("/tmp/x.sock")
    )


def test_the_bundled_program_is_there() -> None:
    assert p2pd_program().name == "p2pd"


async def test_it_starts_serves_its_socket_and_stops(tmp_path: Path) -> None:
    async with open_asyncio_thread() as thread:
        process = await thread.run(start_p2pd, P2pdOptions(_identity_file(tmp_path)), tmp_path)
        assert process.control_socket.is_socket()
        before = process.is_running
        await thread.run(process.stop)
        assert (before, process.is_running) == (True, False)
        assert not process.control_socket.exists()


@pytest.mark.parametrize(
    "options",
    [
        P2pdOptions(Path("/nonexistent/identity")),
        P2pdOptions(Path("/dev/null")),
    ],
)
async def test_an_identity_that_cannot_be_read_is_one_clear_error(options: P2pdOptions, tmp_path: Path) -> None:
    async with open_asyncio_thread() as thread:
        with pytest.raises(MachineError, match="p2pd did not start"):
            await thread.run(start_p2pd, options, tmp_path)
