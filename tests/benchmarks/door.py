"""Sybils at the door of an open run: `python -m tests.benchmarks.door [--quick]`.

A thousand keys knock for ten virtual minutes, each with the right answer to a puzzle that costs nothing, from one address prefix and
then from many. The host is the real one without its network: service, door, ledger on disk. The rows show how many come in, how long
a keeper's admission takes among them, and the processor time of a knock.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio
import trio.testing
from cryptography import x509

from coordinator.ledger.juniors import juniors
from protocol.errors import RefusedError, TemporaryError
from protocol.identity.credential import CredentialRequest, make_request, make_tls_key, open_request
from protocol.identity.identity import Identity
from tests.benchmarks.results import Row, always, at_most, print_rows, write_rows
from tests.coordinator.chain_world import VERIFIER
from tests.coordinator.host_world import RUN_TOML, HostWorld, open_host

STORM_S: Final = 600.0
MAX_STRANGERS: Final = 64
PREFIX_PLACES: Final = 4
NUM_KEEPERS: Final = 5
KEEPER_WITHIN_S: Final = 5.0
KNOCK_WITHIN_S: Final = 0.05
"""Processor time: ten knocks a second then take half of a core."""

_OPEN: Final = f"""
robust = "clip-agree"
[admission]
open = true
puzzle_bits = 0
max_strangers = {MAX_STRANGERS}
prefix_places = {PREFIX_PLACES}
[checkpoint]"""


@dataclass(frozen=True)
class Storm:
    """One storm as it went: sybils that came in, seconds of each keeper's admission, and processor seconds of a knock."""

    num_in: int
    keepers_s: Sequence[float]
    knock_s: float


async def _storm(num_sybils: int, num_prefixes: int, folder: Path) -> Storm:
    toml = RUN_TOML.replace("[model]", "max_members = 64\nmax_peers = 256\n[model]").replace("[checkpoint]", _OPEN)
    with open_host(folder, toml=toml) as host:
        if host.door is None:
            raise AssertionError("a host without a door")
        host.invite(uses=NUM_KEEPERS)
        csr = _request(host)
        keepers_s: list[float] = []
        spent_s = 0.0
        for number in range(num_sybils):
            key = Identity((number + 1).to_bytes(32, "big"))
            begin_s = time.process_time()
            challenge = host.door.challenge(key.public_key)
            caller = f"203.{number % num_prefixes // 256}.{number % num_prefixes % 256}.1"
            with suppress(TemporaryError, RefusedError):
                await host.door.enter(CredentialRequest(key.peer_id, csr), challenge.raw, 0, caller)
            spent_s += time.process_time() - begin_s
            if number % (num_sybils // NUM_KEEPERS) == num_sybils // NUM_KEEPERS // 2:
                keepers_s.append(await _admitted_s(host, len(keepers_s)))
            await trio.sleep(STORM_S / num_sybils)
        return Storm(len(juniors(host.ledger)), keepers_s, spent_s / num_sybils)


def _request(host: HostWorld) -> x509.CertificateSigningRequest:
    """A request for a credential that all sybils share: signing one each would be their work, not the host's."""
    now = host.clock.unix_s()
    sealed = make_request(Identity(b"k" * 32), host.run_id, make_tls_key(), now)
    return open_request(sealed, verifier=VERIFIER, run_id=host.run_id, now_unix_s=now).csr


async def _admitted_s(host: HostWorld, number: int) -> float:
    begin_s = time.perf_counter()
    await host.service.admit(host.admit_request(Identity(bytes([200 + number]) * 32)))
    return time.perf_counter() - begin_s


def _rows(num_sybils: int, num_prefixes: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        clock = trio.testing.MockClock(autojump_threshold=0)
        storm = trio.run(_storm, num_sybils, num_prefixes, Path(folder), clock=clock)
    settings = {"sybils": num_sybils, "prefixes": num_prefixes, "virtual_s": STORM_S, "places": MAX_STRANGERS}
    most = min(MAX_STRANGERS, PREFIX_PLACES * num_prefixes)
    is_bounded = storm.num_in <= most
    return [
        Row("door", "sybils that came in", float(storm.num_in), "peers", target=f"<= {most}", met=is_bounded,
            trials=1, settings=settings),
        always("door", "keepers that came in among them", [len(storm.keepers_s) == NUM_KEEPERS], settings),
        at_most("door", "a keeper's admission", storm.keepers_s, KEEPER_WITHIN_S, settings),
        at_most("door", "processor time of a knock", [storm.knock_s], KNOCK_WITHIN_S, settings),
    ]  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """0 when every row keeps its target."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.door", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the sybils")
    parser.add_argument("--out", type=Path, help="write the rows there, as JSON lines")
    given = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    num_sybils = 200 if given.quick else 1000
    rows = [row for num_prefixes in (1, 250) for row in _rows(num_sybils, num_prefixes)]
    print_rows(rows, "sybils at the door")
    if given.out is not None:
        write_rows(rows, given.out)
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
