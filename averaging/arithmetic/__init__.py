"""Arithmetic on flat vectors: delta, feedback, weighted mean, outer step."""
