"""Imports the parts of hivemind that Potluck uses: its libp2p and its DHT.

hivemind's front page, `hivemind/__init__.py`, also imports its averagers, optimizers and mixtures of experts, and with them scipy's
solvers, which cost every daemon time and memory. So the front page is deferred until somebody asks for a name in it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from typing import Any, Final

from averaging.gc_freeze import frozen_imports

PARTS: Final = ("hivemind.dht.node", "hivemind.p2p", "hivemind.utils.multiaddr")


def import_hivemind() -> None:
    """Import the parts, quietly unless HIVEMIND_LOGLEVEL is set. Call it outside the event loops.

    Later calls, as of a peer that moves to another stage, do nothing, so that garbage from before stays collectable.
    """
    if all(part in sys.modules for part in PARTS):
        return
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "ERROR")
    with frozen_imports():
        import_parts("hivemind", PARTS)


def import_parts(package: str, parts: Sequence[str]) -> None:
    """Import modules of a package and defer its front page. If the modules need the front page, import that as well.

    Raises:
        ImportError: there is no such package, or not all of these modules are in it.
    """
    spec = None if package in sys.modules else find_spec(package)
    if spec is not None:
        _put_off(spec)
        try:
            _import_all(parts)
        except (ImportError, AttributeError):
            del sys.modules[package]
        else:
            return
    _import_all((package, *parts))


def _import_all(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)


def _put_off(spec: ModuleSpec) -> None:
    """Register the package as a module that runs its front page when an unknown name is looked up."""
    module = module_from_spec(spec)

    def front_page(name: str) -> Any:
        half_imported = sys.modules.get(f"{spec.name}.{name}")
        if half_imported is not None:
            return half_imported
        if name.startswith("__") and name != "__version__":  # importers and debuggers ask any module for these
            raise AttributeError(f"module {spec.name!r} has no attribute {name!r}", name=name, obj=module)
        del module.__dict__["__getattr__"]
        if spec.loader is not None:
            spec.loader.exec_module(module)
        return getattr(module, name)

    module.__dict__["__getattr__"] = front_page
    sys.modules[spec.name] = module
