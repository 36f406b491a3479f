from __future__ import annotations

import pytest

from averaging.models.llama.config import LlamaConfig
from protocol.errors import LocalProtocolError
from protocol.ids import UnitName
from protocol.tensors.model_config import WHOLE_MODEL, model_schema
from protocol.tensors.model_units import EMBEDDINGS, default_fragments, model_units

MODEL = LlamaConfig(
    vocab_size=17, dim=8, num_layers=5, num_heads=2, num_kv_heads=1, ffn_dim=12, context_tokens=16, is_tied=False
)


def test_without_fragments_there_is_one_unit_with_the_tensors_in_the_models_own_order() -> None:
    units = model_units(MODEL)
    assert units.schemas == (model_schema(MODEL),)
    assert units.whole == model_schema(MODEL)
    assert units.spans == ((0, model_schema(MODEL).num_elements),)


def test_layers_are_strided_over_the_fragments_and_all_else_is_a_unit_of_its_own() -> None:
    units = model_units(MODEL, 2)
    assert [schema.unit for schema in units.schemas] == [WHOLE_MODEL, "fragment-1", EMBEDDINGS]
    layers = [sorted({spec.name.split(".")[1] for spec in schema.tensors}) for schema in units.schemas[:2]]
    assert layers == [["0", "2", "4"], ["1", "3"]]
    assert [spec.name for spec in units.schemas[2].tensors] == ["embed.weight", "norm.weight", "head.weight"]


def test_units_lie_one_after_another_and_have_every_tensor_once() -> None:
    units = model_units(MODEL, 3)
    assert sorted(spec.name for spec in units.whole.tensors) == sorted(s.name for s in model_schema(MODEL).tensors)
    for schema, (begin, stop) in zip(units.schemas, units.spans, strict=True):
        assert units.whole.offset(schema.tensors[0].name) == begin
        assert stop - begin == schema.num_elements
        assert units.place(schema.unit) == units.schemas.index(schema)
    assert units.spans[-1][1] == units.whole.num_elements


def test_a_unit_that_is_none_of_them_is_said() -> None:
    with pytest.raises(LocalProtocolError, match="unit expert-1; expected one of"):
        model_units(MODEL, 2).place(UnitName("expert-1"))


@pytest.mark.parametrize(("num_layers", "expected"), [(1, 1), (4, 1), (5, 2), (12, 4), (32, 11)])
def test_fragments_have_about_three_layers_where_nothing_else_is_said(num_layers: int, expected: int) -> None:
    assert default_fragments(num_layers) == expected
