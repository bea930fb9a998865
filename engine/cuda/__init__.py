"""CUDA sources compiled by NVRTC and launched."""
