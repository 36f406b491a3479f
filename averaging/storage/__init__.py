"""Files that are whole or absent: the storage interface, on disk and in memory."""
