"""The outer steps, one module each: how a committed average moves the anchor and the vectors that are kept beside it."""
