"""The layers of decoders, from which families are put together, and the one loop over them."""
