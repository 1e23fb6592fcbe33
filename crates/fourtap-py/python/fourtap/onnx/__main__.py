"""``python -m fourtap.onnx``: the command ``rewrite``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fourtap.errors import Error, InputError
from fourtap.onnx.errors import PatternError, VerificationError
from fourtap.onnx.functions import FORMS

# 2 is argparse's, for arguments it does not understand.
_FAILED, _NOT_THERE, _NOT_THE_SAME = 1, 3, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m fourtap.onnx")
    commands = parser.add_subparsers(dest="command", required=True)
    rewrite = commands.add_parser(
        "rewrite",
        help="put another form in the place of deformable attention that was exported as GridSample",
        epilog=f"Exit code {_NOT_THERE}: no deformable attention was found. {_NOT_THE_SAME}: the result was wrong, or "
        f"could not be compared. {_FAILED}: anything else. Nothing is written then.",
    )
    rewrite.add_argument("source", metavar="IN", help="a model that was exported without fourtap")
    rewrite.add_argument("target", metavar="OUT", help="where to write the rewritten model")
    rewrite.add_argument(
        "--to",
        choices=FORMS,
        default=FORMS[0],
        help="which form: our nodes, those of TensorRT's plugin, or operators that every runtime has",
    )
    rewrite.add_argument("--overwrite-source", action="store_true", help="replace IN where OUT is the same file")
    rewrite.add_argument("--no-verify", action="store_true", help="do not run both models to compare them")
    rewrite.add_argument("--no-functions", action="store_true", help="leave out what only other runtimes need")
    rewrite.add_argument("--inputs", metavar="FILE.npz", help="what to run the models on, instead of random numbers")
    rewrite.add_argument(
        "--size",
        metavar="NAME=NUMBER[,NUMBER]",
        action="append",
        default=[],
        help="a dynamic axis, for random numbers; of two sizes, both are compared",
    )
    options = parser.parse_args(arguments)
    try:
        print(_rewrite(options))
    except Error as error:
        print(f"error: {error}", file=sys.stderr)
        return {PatternError: _NOT_THERE, VerificationError: _NOT_THE_SAME}.get(type(error), _FAILED)
    return 0


def _rewrite(options: argparse.Namespace) -> str:
    from fourtap.onnx.rewriting import rewrite

    result = rewrite(
        options.source,
        options.target,
        to=options.to,
        verify=not options.no_verify,
        inputs=_inputs(options.inputs),
        sizes=dict(_size(text) for text in options.size),
        with_functions=not options.no_functions,
        overwrite_source=options.overwrite_source,
    )
    lines = [f"{options.target}: {result.replaced} x {result.node}"]
    if result.error is None:
        lines.append("not compared with the model as it was")
    else:
        lines.append(f"largest error of a node: {result.error:.1e}")
        lines += [f"output {name}: error {error:.1e}" for name, error in result.output_errors.items()]
    return "\n".join(lines)


def _inputs(file: str | None) -> dict[str, object] | None:
    import numpy as np

    if file is None:
        return None
    try:
        with np.load(file) as arrays:
            return dict(arrays)
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: expected arrays as numpy.savez writes them, found {error}") from error


def _size(text: str) -> tuple[str, list[int]]:
    name, _, numbers = text.partition("=")
    both = numbers.split(",")
    if not name or len(both) > 2 or not all(number.isdecimal() for number in both):
        raise InputError(f"--size: expected NAME=NUMBER or NAME=NUMBER,NUMBER, found {text!r}")
    return name, [int(number) for number in both]


if __name__ == "__main__":
    sys.exit(main())
