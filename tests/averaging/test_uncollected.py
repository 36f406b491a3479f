from __future__ import annotations

import gc

import pytest

from averaging.uncollected import uncollected


def test_no_garbage_is_looked_for_in_the_block_and_again_after_it() -> None:
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_the_block_made_is_never_looked_through_again() -> None:
    before = gc.get_freeze_count()
    with uncollected():
        made = [[] for _ in range(1000)]
        with uncollected():
            pass
        assert gc.get_freeze_count() <= before, "not yet: more is being made"
    assert gc.get_freeze_count() > before + len(made) // 2
    later: list[object] = []
    assert any(each is later for each in gc.get_objects())
    assert not any(each is made for each in gc.get_objects())


def test_garbage_is_looked_for_again_after_an_import_that_failed() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError("not there")
    assert gc.isenabled()
