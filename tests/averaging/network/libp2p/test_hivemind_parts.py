from __future__ import annotations

import gc
import importlib
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from averaging.network.libp2p.hivemind_parts import import_hivemind, import_parts

FRONT_PAGE = "from orchard.trees import Tree\n__version__ = '2.0'\nBASKETS = ['front page ran']\n"


class Orchard:
    """A package on disk whose front page imports more than its `roots`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "orchard"
        self._folder.mkdir()

    def write(self, **modules: str) -> None:
        for name, text in modules.items():
            (self._folder / f"{name}.py").write_text(text, encoding="utf8")
        importlib.invalidate_caches()


@pytest.fixture
def orchard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orchard]:
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Orchard(tmp_path)
    made.write(__init__=FRONT_PAGE, roots="DEPTH = 3\n", trees="class Tree: ...\n")
    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] == "orchard"]:
        del sys.modules[name]


def _module(name: str) -> Any:
    return sys.modules[name]


@pytest.mark.usefixtures("orchard")
def test_a_part_is_imported_without_the_front_page() -> None:
    import_parts("orchard", ["orchard.roots"])
    assert _module("orchard").roots.DEPTH == 3
    assert "orchard.trees" not in sys.modules


@pytest.mark.usefixtures("orchard")
@pytest.mark.parametrize(("name", "found"), [("BASKETS", ["front page ran"]), ("__version__", "2.0")])
def test_the_front_page_runs_once_somebody_asks_for_a_name_on_it(name: str, found: object) -> None:
    import_parts("orchard", ["orchard.roots"])
    before = _module("orchard.roots")
    assert getattr(_module("orchard"), name) == found
    assert importlib.import_module("orchard").Tree is _module("orchard.trees").Tree
    assert _module("orchard").roots is before
    assert not hasattr(_module("orchard"), "PEARS")


def test_a_part_that_names_itself_while_it_is_imported_does_not_run_the_front_page(orchard: Orchard) -> None:
    orchard.write(roots="import orchard.roots as me\nDEPTH = 3\nSELF = me\n")
    import_parts("orchard", ["orchard.roots"])
    assert _module("orchard.roots").SELF is _module("orchard.roots")
    assert "orchard.trees" not in sys.modules


@pytest.mark.usefixtures("orchard")
def test_what_importers_ask_every_module_for_does_not_run_the_front_page() -> None:
    import_parts("orchard", ["orchard.roots"])
    assert not hasattr(_module("orchard"), "__wrapped__")
    assert "orchard.trees" not in sys.modules


def test_a_part_that_uses_names_of_the_front_page_gets_them(orchard: Orchard) -> None:
    orchard.write(roots="from orchard import BASKETS\nDEPTH = len(BASKETS)\n")
    import_parts("orchard", ["orchard.roots"])
    assert _module("orchard.roots").DEPTH == 1


def test_a_part_that_only_comes_with_the_front_page_comes_with_it(orchard: Orchard) -> None:
    orchard.write(
        __init__="import sys\nimport orchard.trees\nsys.modules['orchard.roots'] = orchard.trees\n",
        roots="import pears\n",
    )
    import_parts("orchard", ["orchard.roots"])
    assert _module("orchard.roots") is _module("orchard.trees")


def test_a_package_that_is_there_already_stays_as_it_is(orchard: Orchard) -> None:
    whole = importlib.import_module("orchard")
    import_parts("orchard", ["orchard.roots"])
    assert _module("orchard") is whole
    orchard.write(leaves="")
    with pytest.raises(ImportError, match="apples"):
        import_parts("orchard", ["orchard.apples"])


@pytest.mark.usefixtures("orchard")
def test_a_part_that_is_nowhere_is_told() -> None:
    with pytest.raises(ImportError, match="apples"):
        import_parts("orchard", ["orchard.apples"])


def test_a_package_that_is_not_installed_is_told() -> None:
    with pytest.raises(ImportError, match="orchard_next_door"):
        import_parts("orchard_next_door", ["orchard_next_door.roots"])


def test_hivemind_comes_without_its_trainers_and_has_them_when_asked() -> None:
    import_hivemind()
    assert "hivemind.dht.node" in sys.modules
    assert "hivemind.averaging.averager" not in sys.modules
    assert importlib.import_module("hivemind").DHT is _module("hivemind.dht.dht").DHT
    assert "hivemind.averaging.averager" in sys.modules


class _Knot:
    """Refers to itself, as what a network leaves behind does."""

    def __init__(self) -> None:
        self.itself = self


def test_what_was_left_behind_before_hivemind_is_asked_for_again_is_collected() -> None:
    import_hivemind()
    left_behind = weakref.ref(_Knot())
    import_hivemind()
    gc.collect()
    assert left_behind() is None
