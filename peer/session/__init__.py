"""One life of the daemon, from its start to its departure."""
