"""The owner's settings: flags, environment variables, `peer.toml`, hours and exit codes."""
