"""Grammars that answers follow: compiled once, and one matcher a completion. No JAX."""
