"""Work that would hold up the event loop of a front end."""
