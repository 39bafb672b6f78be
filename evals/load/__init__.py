"""The load generator of `hasten bench serve`: any OpenAI-compatible URL, open or closed loop."""
