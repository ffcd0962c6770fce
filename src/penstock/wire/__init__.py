"""What other programs rely on: the scripts, their manifest, golden vectors and the protocol.

`python -m penstock.wire` derives the files of the folder `wire/` from the strategies and writes
them; with `--check` it compares instead. Nothing at run time reads those files.
"""
