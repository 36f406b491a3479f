"""State and results that others have, fetched and checked."""
