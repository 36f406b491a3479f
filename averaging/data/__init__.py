"""Shards of tokens, packed by the host, fetched and checked by peers."""
