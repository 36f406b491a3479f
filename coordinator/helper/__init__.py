"""The helper: a process beside the host that reduces for peers that nobody can connect to, started while they need it."""
