"""Tasks that measure a model: multiple-choice questions and prompts, from JSON lines to a hashed file of tokens."""
