"""Reports on records: tables, captions and plots."""
