"""Scores of committed models on the run's tasks: whose turn it is to measure which part, and what is signed of it."""
