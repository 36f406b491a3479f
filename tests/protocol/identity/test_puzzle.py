"""The puzzle at the open door: bound to a key, a run and a host, answered once in its time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import RefusedError
from protocol.identity import puzzle
from protocol.identity.puzzle import (
    CHALLENGE_BYTES,
    LIFE_S,
    MOST_BITS,
    Challenge,
    check_challenge,
    find_answer,
    is_answer,
    make_challenge,
    read_challenge,
)
from protocol.ids import RunId

SECRET, KEY, OTHER_KEY, RUN, NOW = b"s" * 32, b"k" * 32, b"o" * 32, RunId(b"r" * 32), 1_700_000_000.0
BITS = 3


def _made(bits: int = BITS, nonce: bytes = b"n" * 16) -> Challenge:
    return make_challenge(SECRET, RUN, KEY, bits=bits, nonce=nonce, now_unix_s=NOW)


def _check(challenge: Challenge, **changes: object) -> None:
    about: dict[str, object] = {"secret": SECRET, "run_id": RUN, "public_key": KEY, "bits": BITS, "now_unix_s": NOW}
    check_challenge(challenge, **{**about, **changes})  # type: ignore[arg-type]


def test_a_challenge_is_read_as_it_was_made_and_its_answer_solves_it() -> None:
    challenge = read_challenge(_made().raw)
    assert challenge == _made()
    assert len(challenge.raw) == CHALLENGE_BYTES
    _check(challenge)
    answer = find_answer(challenge, RUN, KEY, 0, 1000)
    assert answer is not None
    assert is_answer(challenge, RUN, KEY, answer)


def test_an_answer_is_for_one_key_one_run_and_one_challenge() -> None:
    challenge = _made(bits=5)
    answer = find_answer(challenge, RUN, KEY, 0, 10_000)
    assert answer is not None
    assert not is_answer(challenge, RUN, OTHER_KEY, answer)
    assert not is_answer(challenge, RunId(b"x" * 32), KEY, answer)
    assert not is_answer(_made(bits=5, nonce=b"m" * 16), RUN, KEY, answer)


@pytest.mark.parametrize(
    "changes",
    [
        {"secret": b"x" * 32},
        {"run_id": RunId(b"x" * 32)},
        {"public_key": OTHER_KEY},
        {"now_unix_s": NOW + LIFE_S + 1},
        {"bits": BITS + 1},
    ],
    ids=["another host", "another run", "another key", "too late", "easier than now"],
)
def test_a_challenge_that_does_not_fit_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RefusedError, match="join again"):
        _check(_made(), **changes)


@pytest.mark.parametrize("changes", [{"bits": 0}, {"end_unix_s": 1 << 40}, {"nonce": b"m" * 16}])
def test_nobody_makes_a_challenge_easier_or_longer(changes: dict[str, object]) -> None:
    with pytest.raises(RefusedError, match="did not make"):
        _check(replace(_made(), **changes), bits=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"x", bytes(CHALLENGE_BYTES + 1)])
def test_bytes_of_another_length_are_no_challenge(data: bytes) -> None:
    with pytest.raises(RefusedError, match="a challenge of"):
        read_challenge(data)


def test_a_number_that_no_u64_holds_is_no_answer() -> None:
    assert not is_answer(_made(bits=0), RUN, KEY, -1)
    assert not is_answer(_made(bits=0), RUN, KEY, 1 << 64)
    assert is_answer(_made(bits=0), RUN, KEY, 0)


def test_a_host_that_asks_for_hours_of_work_is_refused_before_any_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puzzle, "is_answer", lambda *_: pytest.fail("it worked"))
    with pytest.raises(RefusedError, match=f"at most {MOST_BITS}"):
        find_answer(_made(bits=MOST_BITS + 1), RUN, KEY, 0, 1)
