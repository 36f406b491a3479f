"""Builds `blocks.c` when Potluck is installed: the dense codecs as one library beside the source, used by `compiled.py`.

Run by hatchling, for a wheel and for an editable installation, and by tests. It needs a C compiler, `cc` or the one in CC. Without
a compiler the installation warns and continues. The codecs are then computed by torch and NumPy: the same bytes, but slower.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE: Final = Path("averaging/codecs/blocks.c")
LIBRARY: Final = SOURCE.with_suffix(".so")
COMPILE_LIMIT_S: Final = 120.0
LOAD_LIMIT_S: Final = 20.0

_SOURCE_OF: Final = """
import ctypes, sys
source_hash = ctypes.CDLL(sys.argv[1]).potluck_source
source_hash.restype = ctypes.c_char_p
print(source_hash().decode())
"""

# No -ffast-math and no contraction: each operation rounds once, as in torch's and NumPy's kernels.
# These flags come after those in CC, and so override a -ffast-math there.
_FLAGS: Final = (
    *("-std=c11", "-O3", "-fno-fast-math", "-ffp-contract=off", "-fno-math-errno"),
    *("-fPIC", "-shared", "-Wall", "-Wextra"),
)
_CLONES: Final = "-DCLONES"
"""Builds one function for each generation of x86-64; the fitting one is chosen when the library is loaded. If the compiler or the C
library cannot do that, one generic function is built.
"""


def compile_blocks(root: Path, library: Path, *flags: str) -> str:
    """Build the library from the source below `root`. Returns "" or the reason of a failure. An existing library is replaced whole.

    Args:
        flags: replace the functions for each generation of the processor, such as `-march=x86-64-v3`.
    """
    try:
        compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    except ValueError as error:
        return f"CC: {error}"
    digest = _digest(root)
    unfinished = library.with_suffix(f".{os.getpid()}.tmp")
    said = ""
    for chosen in [flags] if flags else [(_CLONES,), ()]:
        named = [f'-DSOURCE="{digest}"', "-o", str(unfinished), str(root / SOURCE)]
        try:
            done = subprocess.run(
                [*compiler, *_FLAGS, *chosen, *named],
                capture_output=True,
                text=True,
                timeout=COMPILE_LIMIT_S,
                check=False,
            )
            if not done.returncode:
                unfinished.replace(library)
                return ""
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
            break
        said = (done.stderr.strip().splitlines() or [f"{compiler[0]} ended with {done.returncode}"])[0]
    _remove(unfinished)
    return said


def is_of_source(root: Path, library: Path) -> bool:
    """Whether the library loads on this machine and was built from the source below `root`. A separate process loads it, because
    loading a truncated file kills the process.
    """
    command = [sys.executable, "-I", "-c", _SOURCE_OF, str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return not done.returncode and done.stdout.strip() == _digest(root)


def _digest(root: Path) -> str:
    return hashlib.sha256((root / SOURCE).read_bytes()).hexdigest()


def _remove(path: Path) -> None:
    """Remove the file if possible: a source tree may be read-only, or another user's. A library of another source is not used
    anyway.
    """
    with contextlib.suppress(OSError):
        path.unlink()


class BlocksHook(BuildHookInterface[Any]):
    """Builds the library before a wheel, editable or not, is assembled."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library, and tag a wheel that contains it with its platform."""
        library = Path(self.root) / LIBRARY
        problem = compile_blocks(Path(self.root), library)
        if problem and is_of_source(Path(self.root), library):
            self.app.display_warning(f"codecs were not rebuilt ({problem}): the existing library of this source stays")
        elif problem:
            _remove(library)
            self.app.display_warning(
                f"codecs are not compiled ({problem}): rounds need more processor time; install a C compiler, then install again"
            )
            return
        build_data["artifacts"].append(f"/{LIBRARY.as_posix()}")
        build_data["pure_python"] = False
        platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
        build_data["tag"] = f"py3-none-{platform}"  # the library does not depend on Python's version
