"""Score cards: a fixed budget of trainings and measurements, the same for every encoding."""
