"""How the daemon ends when something goes wrong; what it does while all is well is checked with real processes in tests/e2e."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import trio

from peer.cards.own_cards import OwnCards
from peer.daemon import JoinedSession, _members_listed, run_peer
from peer.settings.config import PeerConfig
from protocol.errors import MachineError, RefusedError
from protocol.ids import PeerId
from protocol.rounds.schedule.asking_order import asking_order
from tests.peer.membership.test_joining import INVITE


def config(folder: Path, device: str = "cpu") -> PeerConfig:
    return PeerConfig(state_dir=folder, listen_host="127.0.0.1").model_copy(update={"device": device})


def test_expired_invite_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="the invite expired"):
        run_peer(config(tmp_path / "state"), INVITE.encode())
    assert not (tmp_path / "state").exists()


def test_device_that_is_not_there_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("peer.membership.joining.check_invite", lambda *_: None)
    with pytest.raises(MachineError, match=r"device cuda is not available.*--device auto"):
        run_peer(config(tmp_path / "state", "cuda"), INVITE.encode())
    assert not (tmp_path / "state").exists()


def test_a_peer_that_begins_anew_has_a_session_of_its_own_and_the_cards_that_its_last_life_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, cards = list[int](), list[OwnCards]()

    def run(life: partial[Awaitable[OwnCards | None]]) -> OwnCards | None:
        sessions.append(next(value for value in life.args if type(value) is int))
        cards.append(next(value for value in life.args if isinstance(value, OwnCards)))
        return OwnCards(note=f"of life {len(sessions)}") if len(sessions) < 3 else None

    monkeypatch.setattr("peer.membership.joining.check_invite", lambda *_: None)
    monkeypatch.setattr("peer.daemon.run_single_error", run)
    assert run_peer(config(tmp_path / "state"), INVITE.encode()) == 0
    assert len(sessions) == 3
    assert sessions == sorted(set(sessions))
    assert [own.note for own in cards[1:]] == ["of life 1", "of life 2"]


async def test_the_members_that_are_asked_for_certificates_and_states_come_in_an_order_of_each_newcomers_own() -> None:
    members = [PeerId(f"member {number}") for number in range(8)]
    orders = set()
    for me in map(PeerId, ("a newcomer", "another newcomer")):
        entries = [SimpleNamespace(subkey=peer) for peer in (*members, me)]
        poller = SimpleNamespace(poll=partial(_at_once, entries))
        roster = SimpleNamespace(take_records=lambda listed: [entry.subkey for entry in listed])
        joined = SimpleNamespace(network=SimpleNamespace(peer_id=me), poller=poller, roster=roster)
        order = await _members_listed(cast("JoinedSession", joined))
        assert order == asking_order(me, members)
        orders.add(order)
    assert len(orders) == 2


async def _at_once(entries: Sequence[object]) -> Sequence[object]:
    await trio.lowlevel.checkpoint()
    return entries
