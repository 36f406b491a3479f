"""A checkpoint pushed to a bucket by the real interface of Google Cloud Storage: gcsfs as it is, and `gcp-storage-emulator` on this
machine.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.install.bucket_trial import BUCKET, serving, try_bucket
from tests.ports import free_port

SERVER: Final = "gcp_storage_emulator"


def try_gs(folder: Path) -> None:
    """As `try_bucket`.

    Raises:
        SystemExit: the emulator is not installed, or as `try_bucket`.
    """
    if find_spec(SERVER) is None:
        raise SystemExit(f"found no {SERVER}; expected it beside this Python; pip install gcp-storage-emulator")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = ("--host=127.0.0.1", f"--port={port}", f"--default-bucket={BUCKET}", "--in-memory", "--quiet")
    with serving((sys.executable, "-m", SERVER, "start", *options), f"{url}/storage/v1/b/{BUCKET}"):
        # before gcsfs is imported: it looks for no account, and asks for no kinds of buckets by gRPC, which the emulator lacks
        os.environ |= {
            "STORAGE_EMULATOR_HOST": url,
            "NO_GCE_CHECK": "true",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        import fsspec

        fsspec.config.conf["gs"] = {"token": "anon"}
        try_bucket("gs", fsspec.filesystem("gs"), folder)
