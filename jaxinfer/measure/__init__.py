"""Measures engines and devices for `jaxinfer bench`, `jaxinfer profile` and `jaxinfer env`."""
