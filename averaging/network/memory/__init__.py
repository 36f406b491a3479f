"""The network in memory, for simulations and tests. It passes the same contract tests."""
