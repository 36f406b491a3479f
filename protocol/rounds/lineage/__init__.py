"""Chains of commits, quorum and the choice between forks."""
