"""What the evaluation programs share."""
