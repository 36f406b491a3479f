"""The protocol that two strangers must agree on. Pure."""
