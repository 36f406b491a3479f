from __future__ import annotations

import random
from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.received import MAX_TEXT
from protocol.rounds.messages.claim import (
    MAX_CLAIM_BYTES,
    Input,
    SliceSum,
    decode_claim,
    encode_claim,
    encode_sum,
    inputs_hash,
)
from protocol.rounds.messages.lane_parts import MAX_PARTS, LanePart
from protocol.rounds.messages.messages import Member
from protocol.rounds.messages.record import Disagreement
from protocol.rounds.messages.requests import ContributionHeader

UNIT, OTHER_UNIT = UnitName("fragment-0"), UnitName("fragment-1")
BASE, ROOT = CommitId(b"b" * 32), Root(b"r" * 32)
A, B = PeerId("alice"), PeerId("bob")
CLAIM = ContributionHeader(UNIT, BASE, Member(A, 3, 2**63), 77, "int8", ROOT, CommitId(b"c" * 32), Root(b"s" * 32))
OF_LANES = replace(CLAIM, tokens=10, lanes=(LanePart(7, 4, 6), LanePart(1 << 31, 4, 4)))
SUM = SliceSum(UNIT, BASE, 3, 9, A, ROOT, 1234, (Input(A, ROOT, 10), Input(B, Root(b"t" * 32), 20)))
IN_PART = replace(SUM, disagreeing=(Disagreement(B, 1, -9),))
OF_STRANGER = replace(CLAIM, is_stranger=True)
WITH_STRANGER = replace(SUM, inputs=(SUM.inputs[0], replace(SUM.inputs[1], is_stranger=True)))


@pytest.mark.parametrize(
    "claim", [CLAIM, OF_STRANGER, OF_LANES, replace(CLAIM, tokens=1 << 53), replace(CLAIM, unit=UnitName("é"))]
)
def test_a_claim_comes_back_from_its_bytes(claim: ContributionHeader) -> None:
    assert decode_claim(encode_claim(claim)) == claim


@pytest.mark.parametrize("claim", [CLAIM, OF_STRANGER, OF_LANES])
def test_every_byte_of_a_claim_counts(claim: ContributionHeader) -> None:
    data = encode_claim(claim)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        try:
            found = decode_claim(bytes(changed))
        except RemoteProtocolError:
            continue
        assert found != claim
        assert encode_claim(found) == changed, "one claim has one layout"


@pytest.mark.parametrize("claim", [CLAIM, OF_STRANGER, OF_LANES])
def test_a_claim_that_is_cut_off_or_goes_on_is_refused(claim: ContributionHeader) -> None:
    data = encode_claim(claim)
    for length in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_claim(data[:length])
    with pytest.raises(RemoteProtocolError, match="1 bytes after a claim"):
        decode_claim(data + b"\0")


def test_the_longest_claim_has_as_many_bytes_as_is_said() -> None:
    lanes = tuple(LanePart(number, 1 << 31, 1) for number in range(MAX_PARTS))
    longest = replace(
        CLAIM,
        unit=UnitName("u" * MAX_TEXT),
        member=Member(PeerId("p" * MAX_TEXT), 3, 2**63),
        codec="c" * MAX_TEXT,
        tokens=MAX_PARTS,
        lanes=lanes,
    )
    assert decode_claim(encode_claim(longest)) == longest
    assert len(encode_claim(longest)) == MAX_CLAIM_BYTES


def test_what_is_no_claim_says_that_the_release_is_another() -> None:
    with pytest.raises(RemoteProtocolError, match=r"without its claim.*install the run's release"):
        decode_claim(b"potluck claim 3" + encode_claim(CLAIM)[15:])
    with pytest.raises(RemoteProtocolError, match="ends early"):
        decode_claim(b"")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x" * (MAX_TEXT + 1), f"a text of {MAX_TEXT + 1} bytes in a claim; expected at most {MAX_TEXT}"),
        ("two\nlines", "cannot be shown"),
        ("\x1b[2J", "cannot be shown"),
    ],
)
def test_a_text_that_is_too_long_or_cannot_be_shown_is_refused(text: str, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        decode_claim(encode_claim(replace(CLAIM, codec=text)))


def test_a_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be read"):
        decode_claim(encode_claim(CLAIM).replace(b"int8", b"\xff\xff\xff\xff"))


def test_numbers_out_of_their_bounds_are_refused() -> None:
    tokens = (77).to_bytes(8, "big")
    for wrong in (b"\x7f" * 8, b"\xff" * 8):
        with pytest.raises(RemoteProtocolError, match="tokens"):
            decode_claim(encode_claim(CLAIM).replace(tokens, wrong))
    with pytest.raises(RemoteProtocolError, match=f"{MAX_PARTS + 1} lanes"):
        decode_claim(encode_claim(CLAIM)[:-2] + (MAX_PARTS + 1).to_bytes(2, "big"))
    off_by_one = encode_claim(OF_LANES)[:-1] + b"\x05"
    with pytest.raises(RemoteProtocolError, match="lanes' parts of 11 tokens"):
        decode_claim(off_by_one)


def test_no_bytes_do_anything_but_raise_the_one_error() -> None:
    chooser = random.Random(5)
    wires = [encode_claim(CLAIM), encode_claim(OF_LANES)]
    for _ in range(3000):
        data = bytearray(chooser.choice(wires))
        for _ in range(chooser.randint(1, 4)):
            data[chooser.randrange(15, len(data))] = chooser.randrange(256)
        try:
            decode_claim(bytes(data[: chooser.randint(0, 2 * len(data))]))
        except RemoteProtocolError:
            continue


# --- sums ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        replace(SUM, unit=OTHER_UNIT),
        replace(SUM, base=CommitId(b"x" * 32)),
        replace(SUM, first_chunk=2),
        replace(SUM, stop_chunk=10),
        replace(SUM, reducer=B),
        replace(SUM, result_hash=Root(b"x" * 32)),
        replace(SUM, lost_ppm=0),
        replace(SUM, inputs=SUM.inputs[:1]),
        replace(SUM, inputs=(SUM.inputs[0], replace(SUM.inputs[1], weight=21))),
        replace(SUM, inputs=(SUM.inputs[0], replace(SUM.inputs[1], root=ROOT))),
        replace(SUM, inputs=(SUM.inputs[0], replace(SUM.inputs[1], peer=PeerId("carol")))),
        IN_PART,
        WITH_STRANGER,
        replace(SUM, inputs=WITH_STRANGER.inputs, disagreeing=IN_PART.disagreeing),
        replace(SUM, inputs=(replace(SUM.inputs[0], is_stranger=True), SUM.inputs[1])),
        replace(IN_PART, disagreeing=(Disagreement(B, 2, -9),)),
        replace(IN_PART, disagreeing=(Disagreement(B, 1, -10),)),
        replace(IN_PART, disagreeing=(Disagreement(A, 1, -9),)),
    ],
)
def test_every_field_of_a_sum_counts(changed: SliceSum) -> None:
    assert encode_sum(changed) != encode_sum(SUM)
    for other in (IN_PART, WITH_STRANGER):
        assert changed == other or encode_sum(changed) != encode_sum(other)


def test_a_sum_does_not_depend_on_the_order_in_which_contributions_came() -> None:
    assert encode_sum(replace(SUM, inputs=SUM.inputs[::-1])) == encode_sum(SUM)
    assert len(inputs_hash(())) == 32


def test_a_claim_is_never_taken_for_a_sum() -> None:
    with pytest.raises(RemoteProtocolError, match="without its claim"):
        decode_claim(encode_sum(SUM).ljust(400, b"\0"))
