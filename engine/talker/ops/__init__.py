"""The step's torch ops. Each writes into the buffers it is given and allocates nothing."""
