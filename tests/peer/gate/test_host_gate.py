"""Words of the host's gate at a peer: kept, refused, passed on, and given to the rounds.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from averaging.network.memory.memory_network import MemorySwarm
from peer.gate.host_gate import FILE_NAME, HOLD_CHANNEL, NUM_DRAWN, NUM_NEXT, HostGate, called_by
from protocol.errors import PotluckError, RefusedError
from protocol.host.host_statements import GateNews
from protocol.identity.identity import Identity
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.lineage.chain_link import link_of
from protocol.rounds.lineage.hold import Hold, seal_hold
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.lineage.rewind import Rewind, seal_rewind
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.wire import decode_certificate, encode_certificate
from tests.coordinator.chain_world import CA, RUN_ID, VERIFIER, Chain
from tests.virtual import InlineOffload, VirtualClock

GENESIS = CommitId(b"g" * 32)
UNIX_S = 1_700_000_000
HOLD = Hold(1, UnitName("whole"), GENESIS, CommitId(b"c" * 32), UNIX_S, 600, 40, 2.5, 42, 3.5)
CHECK = SignatureCheck(VERIFIER, RUN_ID)


def _gate(folder: Path) -> HostGate:
    return HostGate(folder, CHECK, GENESIS, VirtualClock(), InlineOffload())


def _sealed(hold: Hold, signer: Identity = CA.signer) -> bytes:
    return seal_hold(signer, RUN_ID, hold)


async def test_a_hold_is_kept_over_a_restart_and_ends_with_its_time(tmp_path: Path, autojump_clock: object) -> None:
    gate = _gate(tmp_path)
    await gate.restore()
    assert gate.hold is None
    with capture_logs() as logs:
        await gate.take(GateNews(_sealed(HOLD)), "the host")
        await gate.take(GateNews(_sealed(HOLD)), "the host")
    assert [(line["event"], line["reason"]) for line in logs] == [("run_held", HOLD.words)]
    again = _gate(tmp_path)
    await again.restore()
    assert again.hold == HOLD
    await trio.sleep(601)
    assert again.hold is None


async def test_forged_and_older_holds_are_refused_in_one_line_each(tmp_path: Path, autojump_clock: object) -> None:
    gate, second = _gate(tmp_path), replace(HOLD, number=2)
    await gate.take(GateNews(_sealed(second)), "the host")
    forged = _sealed(replace(HOLD, number=3), Identity(b"m" * 32))
    with capture_logs() as logs:
        for _ in range(3):
            await gate.take(GateNews(forged), "a member")
            await gate.take(GateNews(_sealed(HOLD)), "the host")
    assert [line["event"] for line in logs] == ["gate_word_refused"] * 2
    assert "authority signed" in logs[0]["reason"]
    assert "an older hold" in logs[1]["reason"]
    assert gate.hold == second


async def test_a_damaged_file_says_so_and_does_no_harm(tmp_path: Path, autojump_clock: object) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"not a hold")
    gate = _gate(tmp_path)
    with capture_logs() as logs:
        await gate.restore()
    assert [line["event"] for line in logs] == ["gate_word_refused"]
    await gate.take(GateNews(_sealed(HOLD)), "the host")
    assert gate.hold == HOLD


async def test_rewinds_go_to_the_rounds_once_these_are_there_and_bytes_that_are_none_do_not(
    tmp_path: Path, autojump_clock: object
) -> None:
    chain = Chain()
    chain.commit()
    good = link_of(decode_certificate(chain.certificates[0]).record)
    certificate = seal_rewind(CA.signer, RUN_ID, good, Rewind(1, good.commit, UNIX_S))
    news = GateNews(rewinds=(b"\xff", encode_certificate(certificate)))
    gate, taken = _gate(tmp_path), list[Certificate]()

    async def take(certificates: tuple[Certificate, ...]) -> None:
        taken.extend(certificates)

    with capture_logs() as logs:
        await gate.take(news, "the host")
        assert taken == []
        gate.take_commits = take
        await gate.take(news, "the host")
    assert taken == [certificate]
    assert [line["event"] for line in logs] == ["gate_word_refused"]


async def test_a_hold_and_its_end_that_one_peer_hears_come_to_all_members_and_to_nobody_else(
    tmp_path: Path, autojump_clock: object
) -> None:
    names = [PeerId(f"peer{number:02d}") for number in range(12)]
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))

        async def check(peer: PeerId) -> None:
            if peer not in names:
                raise RefusedError("a stranger", "a member", "join first")

        gates = [_gate(_made(tmp_path / name)) for name in names]
        for name, gate in zip(names, gates, strict=True):
            nursery.start_soon(gate.pass_on, swarm.start(name), lambda: names, check)
        await trio.sleep(1)
        await gates[0].take(GateNews(_sealed(HOLD)), "the host")
        await trio.sleep(30)
        assert [gate.hold for gate in gates] == [HOLD] * len(gates)
        await gates[3].take(GateNews(_sealed(replace(HOLD, unix_s=UNIX_S + 30, lasts_s=0))), "the host")
        await trio.sleep(30)
        assert [gate.hold for gate in gates] == [None] * len(gates), "the end of a hold comes to all members, too"
        outsider = swarm.start(PeerId("outsider"))
        with pytest.raises(PotluckError):
            await outsider.call(names[0], HOLD_CHANNEL, _sealed(replace(HOLD, number=2)), timeout_s=2.0)
        assert gates[0].hold is None
        nursery.cancel_scope.cancel()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_everybody_is_called_by_somebody_and_nobody_calls_many() -> None:
    for number in (1, 2, 3, 40):
        names = [PeerId(f"peer{place:02d}") for place in range(number)]
        called = [called_by(name, names) for name in names]
        assert {peer for peers in called for peer in peers} == (set(names) if number > 1 else set())
        assert max(map(len, called)) <= NUM_NEXT + NUM_DRAWN
        assert all(name not in peers for name, peers in zip(names, called, strict=True))
