"""Identities of micro-batches: there and back, seeds, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import RunId
from protocol.pipeline.micro_batch import MICRO_BATCH_BYTES, MicroBatch, decode_micro_batch

ONE = MicroBatch(RunId(bytes(range(32))), lane=1, step=70_000_000_000, number=3, weights=12)


def test_an_identity_goes_there_and_back() -> None:
    assert len(ONE.encoded()) == MICRO_BATCH_BYTES == 56
    assert decode_micro_batch(ONE.encoded()) == ONE


def test_seeds_differ_by_all_but_the_weights_and_are_the_same_each_time() -> None:
    others = [dataclasses.replace(ONE, **{name: getattr(ONE, name) + 1}) for name in ("lane", "step", "number")]
    seeds = [ONE.seed(0), ONE.seed(1), *(other.seed(0) for other in others)]
    assert len(set(seeds)) == 5
    assert dataclasses.replace(ONE, weights=13).seed(0) == ONE.seed(0)


@pytest.mark.parametrize("name", ["lane", "step", "number", "weights"])
def test_what_differs_between_two_identities_is_said(name: str) -> None:
    assert dataclasses.replace(ONE, **{name: getattr(ONE, name) + 1}).same_work(ONE) == f"another {name}"
    assert ONE.same_work(ONE) == ""


@pytest.mark.parametrize("data", [b"", ONE.encoded()[:-1], ONE.encoded() + b"\0", b"\xff" * MICRO_BATCH_BYTES])
def test_bytes_that_are_no_identity_are_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="a micro-batch"):
        decode_micro_batch(data)


def test_numbers_that_fit_into_no_message_are_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="whole numbers that fit"):
        dataclasses.replace(ONE, number=1 << 32)
