"""Score cards: a fixed budget of runs, the same for every encoding."""
