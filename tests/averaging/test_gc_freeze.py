from __future__ import annotations

import gc

import pytest

from averaging.gc_freeze import STEPS_A_COLLECTION, collect_between_steps, frozen_imports


def test_no_garbage_is_looked_for_in_the_block_and_again_after_it() -> None:
    with frozen_imports():
        assert not gc.isenabled()
        with frozen_imports():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def _looked_through() -> set[int]:
    """The ids of all objects that the next collection of everything would visit."""
    return set(map(id, gc.get_objects()))


def test_what_the_block_made_is_never_looked_through_again() -> None:
    with frozen_imports():
        made = [[] for _ in range(1000)]
        with frozen_imports():
            pass
        assert _looked_through().issuperset(map(id, made)), "not yet: more is being made"
    assert _looked_through().isdisjoint([id(made), *map(id, made)])
    later = [[] for _ in range(1000)]
    assert _looked_through().issuperset(map(id, later))


def test_garbage_is_looked_for_again_after_an_import_that_failed() -> None:
    with pytest.raises(ImportError), frozen_imports():
        raise ImportError("not there")
    assert gc.isenabled()


def test_while_steps_are_taken_garbage_is_looked_for_between_two_of_them_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collected: list[int] = []
    monkeypatch.setattr(gc, "collect", collected.append)
    try:
        for step in range(1, 2 * STEPS_A_COLLECTION + 1):
            collect_between_steps(step)
            assert not gc.isenabled()
    finally:
        gc.enable()
    assert collected == [1, 1]
