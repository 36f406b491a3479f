"""buildah, and root file systems of Debian for it. It needs root and no daemon; its chroot isolation has no network of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from tests.install.running import INSTALL_LIMIT_S, Failed, run

MIRROR: Final = "http://deb.debian.org/debian"
PACKAGES: Final = "python3,python3-venv,ca-certificates"
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")


def base_of(suite: str) -> str:
    """The name of the image that `make_base` makes."""
    return f"localhost/potluck-base:{suite}"


class Buildah:
    """buildah with a storage of its own below `folder`."""

    def __init__(self, folder: Path) -> None:
        found = shutil.which("buildah")
        if found is None or os.geteuid() != 0:
            raise Failed("images need root and buildah (Debian: apt-get install buildah debootstrap)")
        self._words = [found, "--root", str(folder / "images"), "--runroot", str(folder / "run")]

    def words(self, command: str, *arguments: str | Path) -> list[str | Path]:
        """A command line."""
        isolated = ["--isolation", "chroot"] if command in ("build", "run", "from") else []
        return [*self._words, command, *isolated, *arguments]

    def __call__(self, command: str, *arguments: str | Path, log: Path | None = None) -> str:
        """Run the command. Returns its output."""
        return run(self.words(command, *arguments), limit_s=INSTALL_LIMIT_S, log=log)

    def start(self, image: str) -> str:
        """A container of the image. Returns its name."""
        return self("from", "--pull-never", image).strip().splitlines()[-1]  # warnings come before it


def make_base(buildah: Buildah, folder: Path, suite: str) -> None:
    """An image of the smallest Debian of a suite, with its Python and venv, and the certificates of this machine."""
    if base_of(suite) in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return
    root = folder / f"base-{suite}"
    if not (root / "usr/bin/python3").exists():
        words = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, root, MIRROR]
        run(words, limit_s=INSTALL_LIMIT_S)
    if CERTIFICATES.exists():
        shutil.copy(CERTIFICATES, root / "etc/ssl/certs/ca-certificates.crt")
    container = buildah.start("scratch")
    buildah("add", "--quiet", container, root, "/")
    buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
    buildah("commit", "--quiet", "--rm", container, base_of(suite))
