from __future__ import annotations

import pytest

from averaging.system.installation import broken_package, unsuited_system


@pytest.mark.parametrize(("platform", "python"), [("linux", (3, 11)), ("darwin", (3, 14)), ("linux", (4, 0))])
def test_suited_system_has_nothing_to_tell(platform: str, python: tuple[int, int]) -> None:
    assert unsuited_system(platform, python) == ""


@pytest.mark.parametrize("platform", ["win32", "cygwin"])
def test_windows_is_told_of_wsl(platform: str) -> None:
    assert "`wsl --install`" in unsuited_system(platform, (3, 12))


def test_older_python_is_told_which_is_needed() -> None:
    assert unsuited_system("linux", (3, 10)) == (
        "this is Python 3.10; expected 3.11 or newer; install one, and Potluck with it"
    )


def test_missing_package_is_named_with_the_command_that_brings_it() -> None:
    told = broken_package(ModuleNotFoundError("No module named 'hivemind.p2p'", name="hivemind.p2p"))
    assert told.startswith("the Python package hivemind is missing; ")
    assert told.endswith("`pip install potluck-train`")


def test_package_that_cannot_be_loaded_is_told_with_its_reason() -> None:
    told = broken_package(ImportError("libfoo.so: wrong ELF class", name="safetensors._rust"))
    assert "safetensors cannot be loaded (libfoo.so: wrong ELF class)" in told
    assert "--force-reinstall" in told


@pytest.mark.parametrize("error", [ImportError("x", name="peer.daemon"), ImportError("no name")])
def test_module_of_ours_that_is_missing_is_a_bug(error: ImportError) -> None:
    assert broken_package(error) == ""
