"""jaxinfer inside other projects: a module for each, which imports that project."""
