"""The unit that leads a run, for each kind of run."""

from __future__ import annotations

import pytest

from protocol.run.default_run import default_toml
from protocol.run.manifest import parse_run_config
from protocol.tensors.spines import SPINES
from tests.protocol.run.made_manifest import manifest_of

BASE = default_toml().replace("[run]\n", '[run]\nstart_from = "base"\n', 1)
KINDS = {
    "data": default_toml(),
    "streaming": default_toml().replace('# mode = "streaming"', 'mode = "streaming"'),
    "expert": default_toml("expert"),
    "pipeline": default_toml("pipeline"),
    "adapter": f"{BASE}\n[adapter]\nrank = 4\n",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_unit_of_each_kind_of_run_is_one_of_the_spines(kind: str) -> None:
    first, *others = manifest_of(parse_run_config(KINDS[kind])).units.schemas
    assert first.unit in SPINES
    assert not any(schema.unit in SPINES for schema in others)
