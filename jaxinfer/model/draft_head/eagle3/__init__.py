"""EAGLE-3 heads (arXiv:2503.01840): one layer, which drafts token by token."""
