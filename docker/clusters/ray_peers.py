"""Peers on the cards of a Ray cluster:  POTLUCK_INVITE=potluck1:... python docker/clusters/ray_peers.py 8"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import ray


@ray.remote(num_gpus=1, num_cpus=4, max_retries=-1)  # each start is a new member and takes one use
def train(invite: str) -> int:
    """Train until the run is over. Returns the exit code of `potluck join`."""
    with tempfile.TemporaryDirectory(prefix="potluck-") as state:
        command = ["potluck", "join", "-", "--over-is-fine", "--state-dir", state]
        return subprocess.run(command, input=invite + "\n", text=True, check=False).returncode


ray.init(address="auto")
print(ray.get([train.remote(os.environ["POTLUCK_INVITE"]) for _ in range(int(sys.argv[1]))]))
