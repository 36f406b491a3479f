"""Stages and lanes: a peer that holds one stage of the model."""
