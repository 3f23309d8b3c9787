"""Triton kernels for attention with a bias, and the tools that inspect them."""
