"""Evaluation records, the common runner of the evaluation programs, bias statistics."""
