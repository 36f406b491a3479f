"""The lineage of a unit in memory, and where it begins: at the genesis, or at a milestone of the host."""
