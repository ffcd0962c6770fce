"""What the project needs and the package does not: its documentation, and its checks."""
