"""Playing: the episodes of a plan on workers, tried again where one dies, and told where they fail."""
