"""Admission and membership: invite, credential, bans, addresses, and one process per identity."""
