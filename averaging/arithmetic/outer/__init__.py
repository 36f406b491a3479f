"""The outer steps, one module each: how a committed average moves the anchor and its state vectors."""
