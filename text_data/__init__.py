"""Token shards, the data loader and tokenization."""
