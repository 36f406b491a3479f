"""Fetches and checks the states and results of other peers."""
