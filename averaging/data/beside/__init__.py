"""The files that lie beside a tokenizer.json: which of them count, and what they say."""
