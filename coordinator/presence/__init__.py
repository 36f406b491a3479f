"""The peers as the host hears them: their newest reports, those that are here, and how often each reports."""
