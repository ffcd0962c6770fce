"""Where states live: one backend per file or folder, each with one atomic `apply`."""
