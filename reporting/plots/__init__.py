"""Programs of plot.py, one module each."""
