"""Members compute chunks of sums again, and keep, show and check the proofs of false ones."""
