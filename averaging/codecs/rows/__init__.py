"""Codecs for the rows of a boundary message, a row a token: plain numbers, or codes with scales."""
