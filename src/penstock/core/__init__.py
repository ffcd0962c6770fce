"""The contracts every other room stands on. Standard library only."""
