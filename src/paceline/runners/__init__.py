"""How a model runs: the Runner protocol, the KV pool, and the runners that implement it."""
