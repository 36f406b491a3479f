"""The commits of a unit that the host remembers, as links."""
