"""The lives of the processes of one replica: where they meet, what they do together, and whose end ended them."""
