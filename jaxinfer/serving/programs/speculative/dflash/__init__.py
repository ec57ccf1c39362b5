"""DFlash heads in an engine."""
