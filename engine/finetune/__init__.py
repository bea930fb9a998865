"""Training of LoRA adapters on clips of a voice."""
