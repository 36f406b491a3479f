from __future__ import annotations

import pytest

from coordinator.status.dry_run_core import Data, each_peer_estimates, host_estimates
from protocol.estimates.dry_run import estimate_lines
from protocol.run.manifest import default_run_toml, parse_run_config
from tests.protocol.run.test_experts_section import expert_toml

DEFAULT = default_run_toml()


@pytest.mark.parametrize(
    ("text", "data", "reported"),
    [
        (DEFAULT, Data(1_000_000, is_packed=False), "data at most about 2.0 MB, from 1.0 MB"),
        (DEFAULT, Data(1_000_000, is_packed=True), "data 1.0 MB, packed already"),
        (DEFAULT, Data(1_000_000, is_packed=True), "writes 6.2 MB a checkpoint, 1.8 GB a day"),
        (expert_toml(), Data(1_000_000, is_packed=True), "data 1.0 MB, packed already"),
        (
            DEFAULT.replace("vocab_size = 257", "vocab_size = 70_000"),
            Data(1_000_000, False),
            "data at most about 4.0 MB",
        ),
        (
            DEFAULT.replace('"python-stdlib"  ', '"parquet"\nglob = "*.parquet" '),
            Data(1_000_000, is_packed=False),
            "data unknown until it is packed: 1.0 MB of parquet files",
        ),
        (
            DEFAULT.replace('"python-stdlib"  ', '"hf"\ndataset = "saved" '),
            Data(1_000_000, is_packed=False),
            "data unknown until it is packed: 1.0 MB of Arrow files",
        ),
        (
            DEFAULT.replace('"python-stdlib"  ', '"hf"\ndataset = "hf://owner/name" '),
            Data(0, is_packed=False),
            "data unknown until it is fetched: hf://owner/name",
        ),
        (DEFAULT, Data(0, is_packed=True), "checkpoints at most 37.0 MB: 4 of 6.2 MB, 4 old ones of 3.1 MB"),
        (
            DEFAULT.replace("total_tokens = 20_000_000", "total_tokens = 2_457_600"),
            Data(0, is_packed=True),
            "checkpoints at most 27.8 MB: 4 of 6.2 MB, 1 old one of 3.1 MB",
        ),
        (DEFAULT, Data(0, is_packed=True), "ledger 5.5 MB, with 64 peers in 163 rounds"),
        (
            DEFAULT.replace("total_tokens = 20_000_000", "total_tokens = 2_000_000_000"),
            Data(0, is_packed=True),
            "archive at most 389.8 MB: certificates of all rounds but the newest 4,096",
        ),
        (DEFAULT, Data(0, is_packed=True), "a day   down 1.1 GB for checkpoints, at a round every 60 s"),
        (DEFAULT, Data(0, is_packed=True), "model   771,328 parameters"),
        (DEFAULT.replace("dim = 128", "dim = 8192"), Data(0, True), "memory  about 5.4 GB"),
    ],
)
def test_the_host_is_told_what_its_run_takes(text: str, data: Data, reported: str) -> None:
    assert reported in "\n".join(estimate_lines(host_estimates(parse_run_config(text), data)))


def test_what_each_peer_needs_is_told_too() -> None:
    lines = estimate_lines(each_peer_estimates(parse_run_config(DEFAULT)))
    assert lines[:4] == [
        "  memory     about 830.8 MB",
        "  disk       at most 114.2 MB and a log of the rounds, and its data",
        "             writes about 1.2 MB a round, 1.7 GB a day at a round every 60 s",
        "  a round    up 1.5 MB, down 1.5 MB, with 64 peers (int8)",
    ]
