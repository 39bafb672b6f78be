"""The arithmetic of a deployment, from a config alone: what fits, and at what ideal speed."""
