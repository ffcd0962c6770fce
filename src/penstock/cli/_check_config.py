"""`penstock check-config`: validates a policy file, describes its policies, and warns of likely
mistakes."""

from __future__ import annotations

import argparse
import sys

from ..config import PolicyFile, in_words, load_policy_file
from ..config._changes import changes_between
from ..config._loading import import_modules
from ..config._schema import schema_text
from ..config._words import described
from ..core._validation import reject
from ._settings import Settings, add_import, imports_of

__all__ = ["SUMMARY", "configure", "run"]


SUMMARY = "validate a policy file and describe its policies"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = (
        "Exit codes: 0 the file is valid, 2 it is not; with --strict, 1 if there are warnings or "
        "counts that will be lost."
    )
    parser.add_argument("file", metavar="FILE", nargs="?", help="a policy file, YAML or JSON")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 if there are warnings, or counts that will be lost",
    )
    parser.add_argument(
        "--against",
        metavar="OLD",
        help="the policy file that is served now: report which of its counts will be lost",
    )
    parser.add_argument(
        "--schema",
        action="store_true",
        help="print the JSON Schema of policy files, for editors, and read no file",
    )
    add_import(Settings(parser))


def run(args: argparse.Namespace) -> int:
    """Describe the policies of the file. Raises `config_invalid` if it is not valid."""
    args.settings.resolve(args)
    import_modules(imports_of(args))
    if (args.file is None) != args.schema:
        reject("give either FILE, a policy file, or --schema")
    if args.schema:
        print(schema_text(), end="")
        return 0
    file = load_policy_file(args.file)
    count = len(file.policies)
    print(f"{args.file}: good, {count} {'policy' if count == 1 else 'policies'}")
    for name, spec in file.policies.items():
        for line in described(name, spec.kind, in_words(spec), spec.fail):
            print(f"  {line}")
    for warning in file.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    lost = _compare(args.against, file) if args.against is not None else False
    return 1 if args.strict and (file.warnings or lost) else 0


def _compare(old: str, file: PolicyFile) -> bool:
    """Print what happens to the counts of the policies in `old`. Returns whether some will be
    lost."""
    lost, changed = changes_between(load_policy_file(old), file)
    print(f"against {old}: {'counts will be lost' if lost else 'all counts are kept'}")
    for title, lines in (("lost", lost), ("kept, with other figures", changed)):
        for line in lines:
            print(f"  {title}: {line}")
    return bool(lost)
