"""What the project makes, and the package does not need: its documentation."""
