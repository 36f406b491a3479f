"""A checkpoint pushed to a bucket by the real interface of S3: s3fs as it is, and the server of `moto[server]` on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.install.bucket_trial import BUCKET, serving, try_bucket
from tests.ports import free_port


def try_s3(folder: Path) -> None:
    """As `try_bucket`.

    Raises:
        SystemExit: moto is not installed, or as `try_bucket`.
    """
    command = shutil.which("moto_server", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if command is None:
        raise SystemExit("found no moto_server; expected it beside this Python; pip install 'moto[server]'")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with serving((command, "-H", "127.0.0.1", "-p", str(port)), f"{url}/moto-api/"):
        os.environ |= {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        import s3fs

        fs = s3fs.S3FileSystem()
        fs.mkdir(BUCKET)
        try_bucket("s3", fs, folder)
