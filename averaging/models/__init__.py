"""Model families, one a folder, and what the house asks of each."""
