"""Which world a name, a file, a class or a function means, how it is made, and what it is called."""
