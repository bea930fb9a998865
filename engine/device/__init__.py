"""Devices: memory pools, captured graphs, buffers, CPU threads, and the parts of torch that are not public API."""
