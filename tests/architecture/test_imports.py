"""Imports go one way, and each heavy or dangerous thing has the one place where it may appear."""

from __future__ import annotations

from tests.architecture.source import ROOMS, Module, modules

MAY_IMPORT = {
    "protocol": {"protocol"},
    "averaging": {"protocol", "averaging"},
    "peer": {"protocol", "averaging", "peer"},
    "coordinator": {"protocol", "averaging", "coordinator"},
}
HOUSE = {"protocol", "averaging", "peer", "coordinator", "potluck", "tests"}
NOT_IN_PROTOCOL = {"torch", "numpy", "trio", "grpc", "socket", "asyncio", "threading", "subprocess", "hivemind"}
NOWHERE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "multiprocessing"}


IMPORTS_BY_NAME = {"import_module", "__import__"}
BY_NAME_IN_PROTOCOL = {"protocol/tensors/model_families.py"}
"""The section of a family is in the family's folder. The names come from FAMILIES alone, never from a file or a peer."""


def _offences(module: Module, forbidden: set[str]) -> list[str]:
    return [f"{module.path}:{line} {name}" for name, line in module.imports() if name.split(".")[0] in forbidden]


def test_rooms_import_in_one_direction() -> None:
    found = [
        offence
        for module in modules()
        if module.room in MAY_IMPORT
        for offence in _offences(module, HOUSE - MAY_IMPORT[module.room])
    ]
    assert found == []


def test_no_relative_imports_so_that_every_import_says_its_room() -> None:
    found = [f"{m.path}:{line}" for m in modules() for name, line in m.imports() if name.startswith(".")]
    assert found == []


def test_protocol_is_free_of_tensors_loops_sockets_and_threads() -> None:
    found = [offence for module in modules("protocol") for offence in _offences(module, NOT_IN_PROTOCOL)]
    assert found == []


def test_hivemind_stays_in_averaging_network() -> None:
    outside = [m for m in modules() if not m.path.startswith("averaging/network/")]
    assert [offence for module in outside for offence in _offences(module, {"hivemind"})] == []


def test_matplotlib_stays_in_the_plot() -> None:
    outside = [m for m in modules() if m.path != "peer/demo/screen.py"]
    assert [offence for module in outside for offence in _offences(module, {"matplotlib"})] == []


def test_no_module_imports_pickle_or_its_relatives() -> None:
    assert [offence for module in modules() for offence in _offences(module, NOWHERE)] == []


def test_protocol_imports_no_module_by_a_name_made_at_run_time() -> None:
    found = [
        f"{module.path}:{line} {name}"
        for module in modules("protocol")
        for name, line in (*module.imports(), *module.calls())
        if name.split(".")[-1] in IMPORTS_BY_NAME
        if module.path not in BY_NAME_IN_PROTOCOL
    ]
    assert found == []


def test_nobody_imports_generated_grpc_stubs_of_ours() -> None:
    ours = [(m, name, line) for m in modules() for name, line in m.imports() if name.startswith("protocol.")]
    found = [f"{m.path}:{line} {name}" for m, name, line in ours if "_pb2_grpc" in name]
    assert found == []


def test_nobody_waits_with_a_call_that_refuses_descriptors_above_1023() -> None:
    found = [
        f"{m.path}:{line}" for m in modules(*ROOMS, "tests") for name, line in m.calls() if name == "select.select"
    ]
    assert found == [], "`select.poll` takes any descriptor"
