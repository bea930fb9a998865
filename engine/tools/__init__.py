"""What users and tests run beside the engine."""
