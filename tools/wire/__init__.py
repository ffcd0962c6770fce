"""What other programs rely on: the scripts, their manifest, golden vectors and the protocol.

`python -m tools.wire` derives the files of the folder `wire/` from the strategies and writes them;
with `--check` it compares instead. `python -m tools.wire.protos` does the same for the modules of
`penstock.wire.proto`. Nothing at run time reads those files.
"""
