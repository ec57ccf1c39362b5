"""The tables that `jaxinfer plan` prints and the plot that it draws."""
