"""The host acts on proofs of false sums, on auditors' verdicts, and on the losses of commits."""
