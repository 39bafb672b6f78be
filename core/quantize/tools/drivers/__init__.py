"""Programs that run in a tool's own environment, by their path; nothing of Hasten exists there."""
