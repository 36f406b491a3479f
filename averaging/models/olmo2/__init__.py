"""OLMo 2: Llama with norms after attention and feed-forward, and of all queries and keys of a token."""
