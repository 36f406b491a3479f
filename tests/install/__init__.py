"""Checks of installing: declared ranges, wheel and sdist, images. They take many minutes; `make test` only tests their decisions."""
