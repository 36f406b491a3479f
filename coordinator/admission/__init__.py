"""The gRPC door: admission, invites, bans, probes."""
