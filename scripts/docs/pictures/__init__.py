"""Pictures of profiles and of memory as SVG, without a package that draws."""
