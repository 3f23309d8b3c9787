"""x"""
CASES = []
