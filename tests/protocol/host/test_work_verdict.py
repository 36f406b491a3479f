from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.host.work_verdict import MOST_LENGTH_PERMILLE, decode_verdict, encode_verdict, untold_of, verdict_of
from protocol.ids import CommitId, PeerId, Root, UnitName

VERDICT = verdict_of(
    UnitName("fragment-0"),
    CommitId(b"c" * 32),
    PeerId("alice"),
    Root(b"r" * 32),
    gap=-0.1234567,
    length_ratio=0.98765,
)


def test_a_verdict_comes_back_from_its_bytes_rounded_to_millionths_and_thousandths() -> None:
    assert decode_verdict(encode_verdict(VERDICT)) == VERDICT
    assert (VERDICT.gap_ppm, VERDICT.length_permille) == (-123457, 988)


def test_a_contribution_of_any_length_has_a_verdict() -> None:
    longest = verdict_of(VERDICT.unit, VERDICT.commit, VERDICT.contributor, VERDICT.root, gap=2.0, length_ratio=1e30)
    assert longest.length_permille == MOST_LENGTH_PERMILLE
    assert decode_verdict(encode_verdict(longest)) == longest


def test_a_verdict_on_steps_that_nobody_told_comes_back_and_has_no_numbers() -> None:
    untold = untold_of(VERDICT.unit, VERDICT.commit, VERDICT.contributor, VERDICT.root)
    assert decode_verdict(encode_verdict(untold)) == untold
    for changes in ({"gap_ppm": 1}, {"length_permille": 1}):
        with pytest.raises(RemoteProtocolError, match="nobody told"):
            replace(untold, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"gap_ppm": 2_000_001},
        {"gap_ppm": -2_000_001},
        {"length_permille": -1},
        {"length_permille": MOST_LENGTH_PERMILLE + 1},
        {"commit": CommitId(b"c")},
        {"root": Root(b"")},
        {"unit": UnitName("")},
        {"contributor": PeerId("p" * 1000)},
    ],
)
def test_a_value_out_of_its_bounds_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError):
        replace(VERDICT, **changes)  # type: ignore[arg-type]


def test_bytes_that_are_no_verdict_or_carry_others_are_refused() -> None:
    data = encode_verdict(VERDICT)
    with pytest.raises(RemoteProtocolError, match="others among them"):
        decode_verdict(data + b"\x98\x06\x01")
    for wrong in (b"", b"\xff", data[:-40], data + bytes(3000)):
        with pytest.raises(RemoteProtocolError):
            decode_verdict(wrong)
