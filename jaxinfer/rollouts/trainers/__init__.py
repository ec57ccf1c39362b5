"""Tables of trainers' parameter trees: a file a trainer, for the ready mappings."""
