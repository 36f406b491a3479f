"""Messages of a round and their bytes."""
