"""From documents to shards, and documents to experts."""
