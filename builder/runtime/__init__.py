"""What runs: caches, steps, generation, verification."""
