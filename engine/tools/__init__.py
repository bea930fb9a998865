"""Commands and checks that users and tests run beside the engine."""
