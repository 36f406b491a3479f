"""Bulk over TLS 1.3 between two peers that reach each other."""
