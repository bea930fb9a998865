"""Compilation of CUDA sources with NVRTC, and their launch."""
