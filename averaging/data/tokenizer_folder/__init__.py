"""The folder of a tokenizer.json: its other files, and which of them count."""
