"""CUDA sources compiled by NVRTC and launched. Knows no kernel."""
