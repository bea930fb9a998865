"""The step's CUDA kernels: `single` for one row, `batch` for many, `sample` for both. Each has a torch twin."""
