"""Penstock inside other frameworks, and what they share."""
