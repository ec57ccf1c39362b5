"""JSON schemas of grammars: keywords that can be enforced, and errors of those that cannot."""
