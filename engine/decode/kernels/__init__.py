"""The step's CUDA kernels: `single` for one row, `batch` for 2 to 128, `sample` for either. Each has a torch twin."""
