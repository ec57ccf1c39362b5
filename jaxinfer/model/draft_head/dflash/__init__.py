"""DFlash heads (arXiv:2602.06036): a few layers, which draft a block of tokens at once."""
