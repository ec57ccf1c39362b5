"""What drafts gain and cost, on answers whose agreement with their drafts is given."""
