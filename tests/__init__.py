"""The tests are a package, so that those of one room may use the helpers of another."""
