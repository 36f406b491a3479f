from __future__ import annotations

import pytest

from protocol.errors import LocalProtocolError
from protocol.kinds.outer_table import MOST_STATE_VECTORS, OUTER_STEPS, OuterFacts, with_momentum


def test_a_kind_with_more_state_than_a_unit_keeps_is_refused_where_it_is_listed() -> None:
    with pytest.raises(LocalProtocolError, match=r"'adam' with 2 state vectors; expected at most 1"):
        OuterFacts("adam", state_vectors=MOST_STATE_VECTORS + 1)


def test_a_name_that_no_module_can_have_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="heavy-ball"):
        OuterFacts("heavy-ball")


def test_every_kind_that_takes_a_momentum_is_offered_to_a_host_who_set_one() -> None:
    offered = {name for name in OUTER_STEPS if f'kind = "{name}"' in with_momentum()}
    assert offered == {facts.name for facts in OUTER_STEPS.values() if facts.takes_momentum}
    assert offered


def test_a_kind_that_keeps_nothing_takes_no_momentum() -> None:
    assert not any(facts.takes_momentum for facts in OUTER_STEPS.values() if not facts.state_vectors)
