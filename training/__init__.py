"""Parts of train_gpt.py: settings, initial weights, optimizer, metrics."""
