"""Members compute chunks of sums again, keep, show and check the proofs of false ones, and fetch what an audit of work compares."""
