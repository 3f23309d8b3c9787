"""Interoperability with Hugging Face transformers."""
