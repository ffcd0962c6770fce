"""`penstock check-config`: whether a policy file would be served, and what it means."""

from __future__ import annotations

import argparse

from ..config import in_words, load_policy_file
from ..config._loading import import_modules
from ..config._words import described
from ._settings import Settings, add_import, imports_of

__all__ = ["SUMMARY", "configure", "run"]


SUMMARY = "validate a policy file"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = "Ends with 0 when the file is good, else with 2 and what would be right."
    parser.add_argument("file", metavar="FILE", help="a policy file, YAML or JSON")
    add_import(Settings(parser))


def run(args: argparse.Namespace) -> int:
    """Say what the file's policies are; a bad one raises `config_invalid`."""
    args.settings.resolve(args)
    import_modules(imports_of(args))
    file = load_policy_file(args.file)
    count = len(file.policies)
    print(f"{args.file}: good, {count} {'policy' if count == 1 else 'policies'}")
    for name, spec in file.policies.items():
        for line in described(name, spec.kind, in_words(spec), spec.fail):
            print(f"  {line}")
    return 0
