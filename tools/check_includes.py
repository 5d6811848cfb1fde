# SPDX-License-Identifier: Apache-2.0
"""Checks the direction of every #include: a layer sees itself and the layers below, nothing else."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What a folder of src/ may include from src/.
LAYERS = {
    "core": {"core"},
    "ops": {"ops", "core"},
    "cpu": {"cpu", "ops", "core"},
    "cuda": {"cuda", "ops", "core"},
    "io": {"io", "core"},
    "model": {"model", "ops", "io", "core"},
    "text": {"text", "io", "core"},
    "runtime": {"runtime", "model", "cpu", "cuda", "ops", "io", "core"},
    "eval": {"eval", "runtime", "text", "model", "cpu", "ops", "io", "core"},
    "train": {"train", "ops", "core"},
    "cli": {"cli"},
    "server": {"server"},
}

# Public headers (include/tessera) of the layers below the engine; the others may include them all.
PUBLIC = {
    "core": {"error", "log"},
    "ops": {"error"},
    "cpu": {"error"},
    "cuda": {"error"},
    "io": {"error"},
    "model": {"error", "sampling", "model_info"},
    "text": {"error", "log", "tokenizer", "chat", "text_stream", "json_writer"},
    "train": {"error"},
}

# Third-party headers a public header may show: the type behind Result<T>.
PUBLIC_THIRD_PARTY = {"tl/expected.hpp"}

# Plain data that device code shares with the host; otherwise src/cuda/device stands alone.
DEVICE_DATA = {"core/dtype.h", "ops/rows.h"}

# Headers that cost seconds to compile, or that would tie a layer to a library: folder by prefix.
OWNERS = {
    "CLI/": {"cli"},
    "histedit": {"cli"},
    "editline/": {"cli"},
    "boost/beast": {"server"},
    "boost/asio": {"server"},
    "cuda": {"cuda"},
    "utf8proc": {"text"},
    "pcre2": {"text"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}


def includes(path):
    """Yields (line number, bracket, target) of a file."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def source_files(folder):
    return sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in SOURCE_SUFFIXES)


def layer_problem(layer, target):
    """Why a file of `layer` may not include `target`, or None."""
    for prefix, folders in OWNERS.items():
        ours = target.partition("/")[0] in LAYERS  # a folder of src, such as cuda/
        if target.startswith(prefix) and layer not in folders and not ours:
            return f"only {', '.join(sorted(folders))} may include {prefix}*"
    head, _, rest = target.partition("/")
    public = PUBLIC.get(layer)
    if head == "tessera" and public and rest.removesuffix(".h") not in public:
        return f"layer {layer} may include <tessera/*.h> of {', '.join(sorted(public))} only"
    if head in LAYERS and "/" in target and head not in LAYERS[layer]:
        return f"layer {layer} may include {', '.join(sorted(LAYERS[layer]))}, not {head}"
    return None


def check_layers():
    for path in source_files("src"):
        parts = path.relative_to(ROOT / "src").parts
        if len(parts) < 2 or parts[0] not in LAYERS:
            yield path, 1, f"folder src/{parts[0]} is not in the layer table of {__file__}"
            continue
        in_device = parts[:2] == ("cuda", "device")
        for number, bracket, target in includes(path):
            problem = layer_problem(parts[0], target)
            own = target.startswith("cuda/device/") or target in DEVICE_DATA
            if in_device and bracket == '"' and not own:
                problem = "src/cuda/device includes plain data and nothing else outside itself"
            if problem:
                yield path, number, problem


def check_public_headers():
    for path in source_files("include"):
        for number, bracket, target in includes(path):
            standard = "/" not in target and "." not in target
            known = target.startswith("tessera/") or target in PUBLIC_THIRD_PARTY
            if bracket == '"' or not (standard or known):
                yield path, number, f"a public header may not include {target}"


def main():
    problems = [*check_layers(), *check_public_headers()]
    for path, number, text in problems:
        print(f"{path.relative_to(ROOT)}:{number}: {text}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
