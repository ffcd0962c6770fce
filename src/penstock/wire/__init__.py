"""The messages of `throttlekit.v1`, and the way between them and the records of the core."""
