"""Short notices about a daemon, posted to an address of its owner's choice."""
