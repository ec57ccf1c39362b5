"""A profile as SVG: one step as a strip; and the frame of any picture."""
