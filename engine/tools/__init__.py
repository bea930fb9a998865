"""Programs around the engine, for users and tests."""
