from __future__ import annotations

from protocol.kinds.boundary_table import BACKWARD_CODECS, BOUNDARY_CODECS, FORWARD_CODECS


def test_numbers_on_the_wire_stay_what_they_are_and_no_two_are_alike() -> None:
    numbers = {name: facts.number for name, facts in BOUNDARY_CODECS.items()}
    assert {name: numbers[name] for name in ("fp32", "fp64", "bf16", "int8", "int4")} == {
        "fp32": 0, "fp64": 1, "bf16": 2, "int8": 3, "int4": 4,
    }  # fmt: skip
    assert len(set(numbers.values())) == len(numbers)
    assert max(numbers.values()) < 256


def test_what_is_for_proofs_is_nothing_that_a_host_may_name() -> None:
    assert "fp64" not in {*FORWARD_CODECS, *BACKWARD_CODECS}


def test_four_bits_are_for_activations_alone() -> None:
    assert set(FORWARD_CODECS) - set(BACKWARD_CODECS) == {"int4"}


def test_a_row_is_its_scales_and_its_codes() -> None:
    sizes = {name: [facts.row_bytes(dim) for dim in (1, 128, 129)] for name, facts in BOUNDARY_CODECS.items()}
    assert sizes["int8"] == [3, 130, 131]
    assert sizes["int4"] == [3, 66, 69]
    assert sizes["bf16"] == [2, 256, 258]
