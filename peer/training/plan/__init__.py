"""Plans how a card trains a model: pure, tables in, a plan and its reason out."""
