"""The contracts that every other layer stands on. Standard library only."""
