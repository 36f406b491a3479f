"""Several replicas in one peer, each on its own card and its own text, that the rounds see as one trainer."""
