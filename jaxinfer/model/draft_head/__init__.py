"""EAGLE-3 draft heads (arXiv:2503.01840): one layer that guesses what a model is going to say."""
