"""Evaluation: checks of encodings, records and their runner, intervals."""
