"""The papers' claims (results/claims.yaml), and verdicts on them."""
