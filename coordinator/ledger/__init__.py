"""The durable record of the run, in SQLite."""
