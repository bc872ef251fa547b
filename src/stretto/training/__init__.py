"""Training: independent agents that learn, each from its own experience, held in blocks and computed together."""
