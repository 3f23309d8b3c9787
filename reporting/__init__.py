"""Reports on evaluation records: tables, captions, verdicts on claims, and plots."""
