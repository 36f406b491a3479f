from __future__ import annotations

import pytest

from protocol.errors import ConfigError, LocalProtocolError
from protocol.ids import UnitName
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema, TensorSpec

UNIT = UnitName("fragment-0")


def test_tensors_lie_one_after_another_in_the_flat_vector() -> None:
    schema = TensorSchema(UNIT, (TensorSpec("a", (2, 3)), TensorSpec("b", (4,))))
    assert schema.num_elements == 10
    assert (schema.offset("a"), schema.offset("b")) == (0, 6)
    with pytest.raises(LocalProtocolError):
        schema.offset("c")


def test_the_pieces_of_a_range_are_the_parts_of_the_tensors_that_lie_in_it() -> None:
    schema = TensorSchema(UNIT, (TensorSpec("a", (2, 3)), TensorSpec("b", ()), TensorSpec("c", (4,))))
    every = [(spec.name, place) for spec in schema.tensors for place in range(spec.num_elements)]
    for start in range(11):
        for stop in range(start, 14):
            pieces = list(schema.pieces(start, stop))
            assert [(spec.name, place) for spec, first, last in pieces for place in range(first, last)] == (
                every[start:stop]
            )
            assert all(first < last for _, first, last in pieces)


def test_the_fingerprint_tells_names_shapes_and_order_apart() -> None:
    a, b = TensorSpec("a", (2, 3)), TensorSpec("b", (6,))
    fingerprints = {
        TensorSchema(UNIT, tensors).fingerprint()
        for tensors in ((a, b), (b, a), (TensorSpec("a", (3, 2)), b), (TensorSpec("c", (2, 3)), b))
    }
    assert len(fingerprints) == 4


@pytest.mark.parametrize("tensors", [(), (TensorSpec("a", (1,)),) * 2, (TensorSpec("a", (0,)),)])
def test_a_schema_that_cannot_be_is_refused(tensors: tuple[TensorSpec, ...]) -> None:
    with pytest.raises(ConfigError):
        TensorSchema(UNIT, tensors)


@pytest.mark.parametrize(("elements", "chunk"), [(1, 1), (10, 3), (9, 3), (5, 100)])
def test_chunks_tile_the_vector_and_the_last_may_be_short(elements: int, chunk: int) -> None:
    grid = ChunkGrid(elements, chunk)
    covered = [i for c in range(grid.num_chunks) for i in range(*grid.bounds(c))]
    assert covered == list(range(elements))
    assert grid.span(0, grid.num_chunks) == (0, elements)


@pytest.mark.parametrize("span", [(-1, 1), (0, 5), (2, 2), (3, 1)])
def test_a_range_outside_the_grid_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(LocalProtocolError):
        ChunkGrid(10, 3).span(*span)
