"""The plain implementation of every operation: readable torch, any device, differentiable where training needs it."""
