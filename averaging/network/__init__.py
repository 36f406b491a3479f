"""Everything that meets the outside. Alone imports hivemind."""
