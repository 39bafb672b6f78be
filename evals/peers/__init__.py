"""Other servers of the same model, measured side by side with this one: `make bench-peers`."""
