"""Fault tests: kills, signals, full disks, corruption, concurrency, fuzzing and malicious files."""
