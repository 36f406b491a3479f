"""Calls and reports between peers and the coordinator."""
