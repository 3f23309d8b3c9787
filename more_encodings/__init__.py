"""Positional encodings beyond those of the CABLE paper."""
