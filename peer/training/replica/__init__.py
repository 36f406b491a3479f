"""A model on one card, with everything that computes its steps. Data, expert and stage peers hold the same."""
