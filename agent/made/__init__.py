"""A base model with the architecture of Qwen3, made and taught on this machine."""
