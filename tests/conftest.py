"""Async tests run on trio, in virtual time where they ask for `autojump_clock`."""

from __future__ import annotations

import gc
import inspect
import os
import shutil
import tempfile
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis  # noqa: F401 - it looks through all objects when it is imported: here they are few yet
import pytest
import structlog
import trio
import trio.testing

from averaging.gc_freeze import frozen_imports
from tests.shared_imports import TESTS, begins_at_the_end, import_from_the_end, keep_compiled

TEST_LIMIT_S = 600.0
"""Generous: on a machine that is busy with other things a test takes several times as long as alone."""

# Many tests start processes of ours. They compile the sources once and not each: as on the machines of those who use it.
os.environ["PYTHONDONTWRITEBYTECODE"] = ""
keep_compiled()

# Before torch is imported: its threads sleep while they wait for one another. As many as there are processors, in each of several
# processes, would otherwise spin for a processor that another of them spins on: tests of seconds took minutes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(autouse=True)
def log_settings() -> Generator[None]:
    """Quiet worlds and loud commands leave the log settings to other tests as they found them."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def short_path() -> Generator[Path]:
    """An empty folder for unix sockets, whose paths have at most about a hundred letters; `tmp_path` names the test."""
    folder = Path(tempfile.mkdtemp(prefix="potluck-test-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """A clock that jumps ahead whenever every task waits."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in trio."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    clock = next((value for value in pyfuncitem.funcargs.values() if isinstance(value, trio.testing.MockClock)), None)
    trio.run(_within_limit, partial(pyfuncitem.obj, **arguments), clock is None, clock=clock)
    return True


async def _within_limit(test: Any, is_real_time: bool) -> None:
    if is_real_time:
        with trio.fail_after(TEST_LIMIT_S):
            await test()
    else:
        await test()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage while everything is imported, nor ever in what that made: it lasts as long as the tests."""
    with frozen_imports():
        if begins_at_the_end(session.config):
            import_from_the_end(sorted(TESTS.rglob("test_*.py")), TESTS.parent)
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In one of several processes, the same order in all of them."""
    if hasattr(config, "workerinput"):
        from tests.lanes import put_longest_first

        put_longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """The distribution of tests, if there are several processes."""
    from tests.lanes import Lanes

    return Lanes(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """The collector sees again the objects frozen here and by simulated worlds, because later plugins look at references."""
    gc.unfreeze()
