"""Several replicas in one run: routing, prompts and decoding apart, KV over links between them."""
