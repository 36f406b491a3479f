"""`potluck profile`: asks a running peer for a profile of its training, and shows it."""
