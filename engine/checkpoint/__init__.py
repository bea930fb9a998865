"""A checkpoint's folder to its config and tensors. Builds no network."""
