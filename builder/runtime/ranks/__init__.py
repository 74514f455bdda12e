"""One model on many ranks: who they are, what they send each other, how they start and how they end."""
