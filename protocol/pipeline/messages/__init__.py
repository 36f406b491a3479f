"""Messages of lanes and their bytes."""
