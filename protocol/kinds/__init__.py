"""The kinds that a manifest may name, one line a kind. The arithmetic of each is a module in averaging that has its name."""
