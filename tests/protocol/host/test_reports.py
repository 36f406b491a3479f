"""Reports and their answers: there and back, and bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from protocol.errors import (
    RemoteProtocolError,
)
from protocol.host.report_bytes import decode_report, encode_report
from protocol.host.reports import (
    MAX_CERTIFICATE_BYTES,
    MAX_CERTIFICATES,
    MAX_JOULES,
    WORST_NATS,
    EnergySpent,
    HeldoutResult,
    OwnCounts,
    PeerReport,
    UnitBytes,
    UnitStanding,
    bounded_nats,
    cut_certificates,
)
from protocol.ids import CommitId, Root, UnitName
from protocol.pb import coordinator_pb2 as pb

COMMIT = CommitId(b"c" * 32)
REPORT = PeerReport(
    state="training",
    reason="all is well",
    unit=UnitName("fragment-0"),
    head=COMMIT,
    index=3,
    total_tokens=12345,
    tokens_per_s=6000.5,
    tokens_ready=77,
    loss_nats=2.25,
    bytes_up=10,
    bytes_down=20,
    state_commit=COMMIT,
    state_root=Root(b"r" * 32),
    is_ready_to_start=True,
    heldout=(HeldoutResult(COMMIT, 3, 12345, 2.5), HeldoutResult(COMMIT, 4, 22345, 2.5, 3.5, ((0, 2.0), (3, 3.0)))),
    certificates=(b"one", b"two"),
    addresses=("/ip4/127.0.0.1/tcp/1/p2p/x",),
)


@pytest.mark.parametrize(
    "values",
    [
        {"loss_nats": math.nan},
        {"loss_nats": math.inf},
        {"tokens_per_s": -1.0},
        {"tokens_per_s": math.nan},
        {"could_tokens_per_s": math.inf},
        {"lane": 1 << 32},
        {"head": CommitId(b"short")},
        {"reason": "x" * 257},
        {"certificates": (b"",) * (MAX_CERTIFICATES + 1)},
        {"addresses": ("a",) * 17},
        {"index": -1},
        {"experts": (256,)},
        {"experts": (0,) * 257},
        {"expert_room": 257},
        {"beside": (UnitStanding(UnitName("expert-1"), COMMIT, Root(b"e" * 32)),) * 1025},
        {"unit_bytes": (UnitBytes(UnitName("expert-1"), 1, 1),) * 1025},
    ],
)
def test_report_out_of_bounds_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        replace(REPORT, **values)


@pytest.mark.parametrize(
    "values", [(-1.0,), (math.nan,), (math.inf,), (2 * MAX_JOULES,), (1.0, -1), (1.0, 1, -5.0), (1.0, 1, 1e6)]
)
def test_energy_out_of_bounds_is_refused(values: tuple[float, ...]) -> None:
    body = pb.ReportBody.FromString(encode_report(REPORT))
    names = ("joules", "tokens", "g_per_kwh")
    if min(values) >= 0:
        for name, value in zip(names, values, strict=False):
            setattr(body.energy, name, value)
        with pytest.raises(RemoteProtocolError):
            decode_report(body.SerializeToString())
    with pytest.raises(RemoteProtocolError):
        EnergySpent(**dict(zip(names, values, strict=False)))  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [(0,) * 33, (-1,)])
def test_tokens_of_sources_out_of_bounds_are_refused(tokens: tuple[int, ...]) -> None:
    with pytest.raises(RemoteProtocolError):
        OwnCounts(tokens)


def test_certificates_are_cut_to_one_report() -> None:
    half = bytes(MAX_CERTIFICATE_BYTES // 2)
    assert cut_certificates([half, half, b"x"]) == (half, half)
    assert len(cut_certificates([b"x"] * 1000)) == MAX_CERTIFICATES
    assert cut_certificates([]) == ()


@pytest.mark.parametrize(
    ("nats", "told"),
    [(2.5, 2.5), (1e6, WORST_NATS), (1e300, WORST_NATS), (math.inf, WORST_NATS), (math.nan, WORST_NATS)],
)
def test_the_loss_of_a_spoiled_model_is_told_as_the_worst_that_a_report_takes(nats: float, told: float) -> None:
    assert HeldoutResult(CommitId(bytes(32)), 1, 1, bounded_nats(nats)).nats == told
