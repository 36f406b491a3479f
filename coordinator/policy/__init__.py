"""Settings of the host, and the rule of admission."""
