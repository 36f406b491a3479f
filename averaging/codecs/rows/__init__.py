"""How the rows of a boundary message are written, a row a token: plain numbers, or codes with scales."""
