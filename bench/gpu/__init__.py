"""What `bench/gpu.sh` measures on a GPU."""
