"""A profile as SVG: one step as a strip, each part on a roofline."""
