"""Text that both daemons print. It stands here because the two may not import each other."""
