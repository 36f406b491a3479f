"""Audits of sums: which chunks to look at, and proofs of false sums that anybody can check."""
