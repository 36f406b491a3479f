"""Model families, one per folder, and the interface of each."""
