"""Conversations: read from rows, rendered by a template in a process of its own, with the parts that count."""
