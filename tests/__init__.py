"""The tests are a package, so that those of one folder may use the helpers of another."""
