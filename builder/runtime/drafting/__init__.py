"""Drafters: each proposes tokens for requests, and hears what the target made of them."""
