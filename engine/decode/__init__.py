"""The hot path: KV cache, sampler, delay machine, decode step and scheduler."""
