"""Parts of scripts/test_gpu.sh: checks and measurements on a GPU, in order of importance."""
