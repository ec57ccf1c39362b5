"""Draft heads: a few layers that guess what a model is going to say, by method a folder."""
