"""Data that members of a round exchange, and how lines and donors are shared."""
