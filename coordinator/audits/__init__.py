"""The host looks at proofs of false sums, and at the losses of commits, and acts on them."""
