#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the template engine with jinja2, set up as chat templates are rendered in Python.

template_oracle.py DRIVER            run the comparison (exit 77: jinja2 is not installed)
template_oracle.py --write-vectors   rewrite the committed vectors that run without Python
"""
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import warnings

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SKIPPED = 77
VECTORS = HERE / "template_vectors.json"
RANDOM_EXPRESSIONS = 6000
RANDOM_TEMPLATES = 1500
CONVERSATIONS = 400
VECTORS_KEPT = 500
SEED = 20240611
TINY = "models/tiny/chat_template.jinja"
RICH = "tests/text/templates/thinking.jinja"
FILES = {(ROOT / name).read_text(): name for name in (TINY, RICH)}

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    VENV = ROOT / ".venv/bin/python"
    if VENV.exists() and pathlib.Path(sys.executable) != VENV and "TESSERA_NO_VENV" not in os.environ:
        os.environ["TESSERA_NO_VENV"] = "1"
        os.execv(VENV, [str(VENV), *sys.argv])
    print("skipped: the Python package jinja2 is not installed")
    sys.exit(SKIPPED)

from template_cases import (CONTEXT, FIXED_CASES, WHITE_SPACE, random_conversation, random_expression,
                            random_template)


class Generation(jinja2.ext.Extension):
    """{% generation %} marks text for training; when rendering it is a block of its own."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("pass_through"), [], [], body).set_lineno(line)

    def pass_through(self, caller):
        return caller()


def environment():
    warnings.simplefilter("ignore", SyntaxWarning)  # of constant subscripts, by the compiler below jinja2
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    return env


def expected(env, case):
    """The text, or None when Python raises."""
    try:
        return env.from_string(case["source"]).render(**json.loads(json.dumps(case["context"])))
    except Exception:  # any failure at all: the engine has to fail as well
        return None


def all_cases():
    rng = random.Random(SEED)
    tiny, rich = FILES
    cases = [{"source": source, "context": CONTEXT} for source in FIXED_CASES + WHITE_SPACE]
    for index in range(CONVERSATIONS):
        context = random_conversation(rng)
        cases.append({"source": tiny if index % 2 else rich, "context": context})
    cases += [{"source": "{{ %s }}" % random_expression(rng, 3), "context": CONTEXT}
              for _ in range(RANDOM_EXPRESSIONS)]
    cases += [{"source": random_template(rng), "context": CONTEXT} for _ in range(RANDOM_TEMPLATES)]
    return cases


def comparable(text):
    """Addresses of objects and surrogates cannot be compared."""
    return text is None or not (" object at 0x" in text or " at 0x" in text or "method " in text)


def run_driver(driver, cases):
    lines = "".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases)
    done = subprocess.run([driver], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.decode().split("\n") if line]


def compare(driver):
    env = environment()
    cases = all_cases()
    results = run_driver(driver, cases)
    counts = {"same text": 0, "both fail": 0, "refused by name": 0, "not comparable": 0}
    failures = []
    reasons = collections.Counter()
    for case, result in zip(cases, results, strict=True):
        text = expected(env, case)
        if not comparable(text):
            counts["not comparable"] += 1
        elif result.get("code") == "unsupported":
            counts["refused by name"] += 1
            reasons[result["error"].split(": case")[0]] += 1
        elif result.get("text") == text:
            counts["both fail" if text is None else "same text"] += 1
        else:
            failures.append((case, text, result))
    for case, text, result in failures[:20]:
        print("DIFFERS:", case["source"][:600], "\n  jinja2: ", repr(text)[:600], "\n  tessera:", str(result)[:600])
    print(counts, "differ:", len(failures))
    print("refused:", reasons.most_common(12))
    refused_share = counts["refused by name"] / len(cases)
    if refused_share > 0.08:
        print(f"too many refusals: {refused_share:.1%}")
        return 1
    return 1 if failures else 0


def write_vectors():
    env = environment()
    cases = all_cases()
    kept = cases[:len(FIXED_CASES) + len(WHITE_SPACE) + 60]
    kept += random.Random(SEED).sample(cases[len(kept):], VECTORS_KEPT - len(kept))
    vectors = []
    for case in kept:
        text = expected(env, case)
        if comparable(text):
            same = case["context"] is CONTEXT
            file = FILES.get(case["source"])
            head = {"file": file} if file else {"source": case["source"]}
            vectors.append(head | {"context": None if same else case["context"], "text": text})
    body = ",\n".join(json.dumps(vector, ensure_ascii=False) for vector in vectors)
    head = json.dumps(f"written by template_oracle.py --write-vectors with jinja2 {jinja2.__version__}")
    VECTORS.write_text(f'{{"about": {head},\n"context": {json.dumps(CONTEXT, ensure_ascii=False)},\n'
                       f'"cases": [\n{body}\n]}}\n')
    print(len(vectors), "vectors")
    return 0


if __name__ == "__main__":
    sys.exit(write_vectors() if sys.argv[1] == "--write-vectors" else compare(sys.argv[1]))
