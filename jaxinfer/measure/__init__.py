"""Measures engines and devices for `jaxinfer profile`, `jaxinfer env` and the scripts."""
