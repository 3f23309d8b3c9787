"""Reports on records: tables, captions, verdicts on claims, and plots."""
