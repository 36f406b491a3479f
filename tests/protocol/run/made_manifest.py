"""The manifest of a run file, as a host writes it."""

from __future__ import annotations

from protocol.run.manifest import RunConfig, RunManifest


def manifest_of(config: RunConfig, **changes: object) -> RunManifest:
    """The manifest of a run, with made hashes and numbers. `changes`: fields with other values."""
    fields: dict[str, object] = {
        "dataset_id": "ab" * 32,
        "dataset_tokens": 1000,
        "heldout_tokens": 100,
        "zlib_bits_per_byte": 2.0,
        "pairs_nats_per_byte": 2.4,
        "host_public_key": "ef" * 32,
        "ca_certificate_sha256": "cd" * 32,
    }
    return RunManifest.model_validate({"config": config, **fields, **changes})
