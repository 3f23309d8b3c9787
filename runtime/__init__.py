"""Command line, files, devices, processes and checkpoints."""
