"""The processes of one replica: where they meet, what they do together, how long one may be silent, and which one's end ended all."""
