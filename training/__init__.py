"""The pipeline that made the embedded checkpoint. The engine and the nodes never import it."""
