"""What two strangers must agree on. Pure."""
