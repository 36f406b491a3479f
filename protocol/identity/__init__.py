"""Keys, names, invites, credentials, signed envelopes and revocations."""
