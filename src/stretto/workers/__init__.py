"""Running code elsewhere; knows nothing of reinforcement learning."""
