"""Matrix products with a layer's weights, with the norm or addition beside them."""
