"""Claims over model sizes: how the records of several rungs of scripts/ladder.sh compare."""
