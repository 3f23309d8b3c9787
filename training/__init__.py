"""Parts of train_gpt.py: settings, initial weights from another run, optimizer, metrics, cost."""
