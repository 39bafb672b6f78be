"""Items that are made up here, and the graders of answers."""
