"""Checkpoints: a folder on disk to config and tensors."""
