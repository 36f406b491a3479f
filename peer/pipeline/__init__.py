"""Pipeline stages and lanes, for a peer that holds one stage of the model."""
