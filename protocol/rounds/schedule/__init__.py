"""When a round is due, and the rule of the outer step."""
