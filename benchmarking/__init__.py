"""Benchmark cases and the implementations they are compared with."""
