"""What the owner wrote: flags, environment variables, `peer.toml`, hours and exit codes."""
