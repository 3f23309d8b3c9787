"""KV cache and token sampling."""
