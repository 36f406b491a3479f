"""Short reports: what they leave out, and that nothing is lost by it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from protocol.host.host_statements import HostStatements
from protocol.host.report_bytes import decode_report, encode_report
from protocol.host.report_delta import made_whole, report_digest, shortened
from protocol.host.reports import (
    AckPair,
    EnergySpent,
    HeldoutResult,
    OwnCounts,
    PeerReport,
    Proofs,
    UnitBytes,
    UnitStanding,
)
from protocol.identity.chosen_name import ChosenName
from protocol.ids import CommitId, Root, UnitName

COMMIT = CommitId(b"c" * 32)
WHOLE = PeerReport(
    state="training",
    reason="round 4 is opened at 300000 ready tokens",
    unit=UnitName("whole"),
    head=COMMIT,
    index=3,
    total_tokens=900_000,
    tokens_per_s=2048.5,
    tokens_ready=70_000,
    loss_nats=2.5,
    bytes_up=12_000_000,
    bytes_down=13_000_000,
    state_commit=COMMIT,
    state_root=Root(b"r" * 32),
    addresses=("/ip4/192.0.2.7/tcp/4001/p2p/12D3KooWabc", "/ip4/192.0.2.7/udp/4001/quic/p2p/12D3KooWabc"),
    signed=HostStatements(known_revocations=b"12345678", known_milestones=b"abcdefgh"),
    version="1.2.3",
    beside=(UnitStanding(UnitName("fragment-1"), COMMIT, Root(b"s" * 32)),),
    experts=(1, 3),
    expert_room=2,
    incarnation=1 << 62,
    lane=70_000,
)
MOVED = {
    "tokens_per_s": 1.0,
    "tokens_ready": 1,
    "loss_nats": None,
    "bytes_up": 1,
    "bytes_down": 1,
    "unit_bytes": (UnitBytes(UnitName("expert-1"), 5, 6),),
    "could_tokens_per_s": 3.0,
    "counts": OwnCounts((5, 6), EnergySpent(1.5e6, 700, 344.0)),
}
BROUGHT = {
    "heldout": (HeldoutResult(COMMIT, 3, 900_000, 2.0),),
    "certificates": (b"certificate",),
    "signed": replace(WHOLE.signed, start_record=b"sealed", revocations=(b"entry",), milestones=(b"stone",)),
    "proofs": Proofs((AckPair(b"one", b"other"),)),
}
NAMES = {"chosen": ChosenName("anna", "oak")}


@pytest.mark.parametrize("changes", [*({name: value} for name, value in {**MOVED, **BROUGHT, **NAMES}.items())])
def test_numbers_that_move_and_what_is_brought_make_no_other_likeness(changes: dict[str, object]) -> None:
    assert report_digest(replace(WHOLE, **changes)) == report_digest(WHOLE)  # type: ignore[arg-type]


def test_everything_else_does() -> None:
    others = [each.name for each in fields(PeerReport) if each.name not in {*MOVED, *BROUGHT, *NAMES, "like"}]
    others.append("signed")
    empty = PeerReport("", "", UnitName(""), is_ready_to_start=True, is_outbound_only=True)
    changed = [replace(WHOLE, **{name: getattr(empty, name)}) for name in others]
    assert len({report_digest(WHOLE), *map(report_digest, changed)}) == len(others) + 1


def test_a_short_report_says_the_same_to_a_host_that_knows_one_like_it() -> None:
    now = replace(WHOLE, **MOVED, **BROUGHT)  # type: ignore[arg-type]
    short = decode_report(encode_report(shortened(now)))
    assert (short.state, short.head, short.beside, short.like) == ("", b"", (), report_digest(WHOLE))
    assert made_whole(WHOLE, short) == now


def test_it_takes_a_tenth_of_the_bytes() -> None:
    assert len(encode_report(WHOLE)) > 300
    assert len(encode_report(shortened(WHOLE))) < 50


def test_a_short_report_keeps_the_name_that_the_whole_one_brought() -> None:
    named = replace(WHOLE, chosen=ChosenName("anna", "oak"))
    assert made_whole(named, shortened(named)).chosen == ChosenName("anna", "oak")
