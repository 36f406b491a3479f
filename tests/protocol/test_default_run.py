from __future__ import annotations

from protocol.default_run import DEFAULT_TOML
from protocol.manifest import parse_run_config


def test_the_file_that_init_writes_is_a_valid_run() -> None:
    config = parse_run_config(DEFAULT_TOML)
    assert config.round.target_tokens == 3 * 20 * config.inner.batch_tokens
