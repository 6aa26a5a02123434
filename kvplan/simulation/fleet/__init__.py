"""Several replicas in one run: who goes where, prompts and decoding apart, KV over links between them."""
