"""PyTorch operators of the core files."""
