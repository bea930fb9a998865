"""Torch ops of the decode step. Each writes into given buffers and allocates nothing."""
