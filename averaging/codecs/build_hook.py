"""Builds `blocks.c` where Potluck is installed: the block codecs as one library beside the source, used by `compiled.py`.

Run by hatchling, for a wheel and for an editable installation, and by tests. It needs a C compiler, `cc` or what CC names; where there
is none the installation says so and goes on, and the codecs are computed by torch and NumPy: the same bytes, several times slower.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE: Final = Path("averaging/codecs/blocks.c")
LIBRARY: Final = SOURCE.with_suffix(".so")
COMPILE_LIMIT_S: Final = 120.0

# No -ffast-math and no contraction: each operation rounds once, as it does in torch's and NumPy's kernels.
_FLAGS: Final = ("-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-Wall", "-Wextra")
_CLONES: Final = "-DCLONES"
"""A function for each generation of x86-64, of which the one that fits is taken when the library is loaded. Not all compilers and
C libraries can do that, and then there is the one for all machines.
"""


def compile_blocks(root: Path, library: Path, *flags: str) -> str:
    """Build the library from the source below `root`; returns "" or why it could not be built. What was there is replaced whole.

    Args:
        flags: in the place of a function for each generation of the processor, such as `-march=x86-64-v3`.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    digest = hashlib.sha256((root / SOURCE).read_bytes()).hexdigest()
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
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if not done.returncode:
            unfinished.replace(library)
            return ""
        said = (done.stderr.strip().splitlines() or [f"{compiler[0]} ended with {done.returncode}"])[0]
    unfinished.unlink(missing_ok=True)
    return said


class BlocksHook(BuildHookInterface[Any]):
    """Builds the library before a wheel, editable or not, is put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it, and let a wheel that holds it say for which machines it is."""
        library = Path(self.root) / LIBRARY
        problem = compile_blocks(Path(self.root), library)
        if problem:
            library.unlink(missing_ok=True)  # of another source, maybe
            self.app.display_warning(
                f"codecs are not compiled ({problem}): rounds take more of the processor; install a C compiler, then again"
            )
            return
        build_data["artifacts"].append(f"/{LIBRARY.as_posix()}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
