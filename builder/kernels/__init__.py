"""Operations of the model, by implementation: ``reference`` is plain, every other one is tested against it."""
