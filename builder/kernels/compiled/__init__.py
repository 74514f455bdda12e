"""C++ for the processor, compiled on first use; elsewhere, and where gradients are wanted, the reference."""
