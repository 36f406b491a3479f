"""Files that are whole or absent: the storage seam, on disk and in memory."""
