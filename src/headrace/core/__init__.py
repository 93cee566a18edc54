"""The nouns, the errors and the ports. Standard library only; every room may import it."""
