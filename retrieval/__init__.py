"""Long-document retrieval with encoders."""
