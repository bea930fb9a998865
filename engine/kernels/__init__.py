"""The step's ops. Each writes into the buffers it is handed and allocates nothing; each has a torch twin."""
