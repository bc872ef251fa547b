"""Networks of many agents as one block: a leading axis of agents, batched products, and widths that keep every bit."""
