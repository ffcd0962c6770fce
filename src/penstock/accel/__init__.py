"""The native accelerator: optional at run time, always tested."""
