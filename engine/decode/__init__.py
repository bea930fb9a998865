"""The hot path: KV cache, sampler, delay machine, the step and what schedules it."""
