"""What answers are split into, and how choices and items are written from the pieces."""
