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


def test_garbage_is_looked_for_again_after_an_import_that_failed() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError("not there")
    assert gc.isenabled()
