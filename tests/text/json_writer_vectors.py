#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes json_writer_vectors.json: what Python's json.dumps makes of random values."""
import json
import pathlib
import random
import struct

rng = random.Random(7)


def random_float():
    kind = rng.randrange(5)
    if kind == 0:
        return struct.unpack("<d", rng.randbytes(8))[0]
    if kind == 1:
        return rng.uniform(-1, 1) * 10.0 ** rng.randrange(-20, 25)
    if kind == 2:
        return float(rng.randrange(-10**6, 10**6)) / 2 ** rng.randrange(12)
    if kind == 3:
        return float(10 ** rng.randrange(23)) * rng.choice([1, -1, 9.99])
    return rng.choice([0.0, -0.0, 5e-324, 1.7976931348623157e308, 2.2250738585072014e-308, 1e16, 1e15, 1e-4, 1e-5, 0.1])


def random_string():
    limit = [0x20, 0x80, 0x250, 0x3000, 0xD800, 0x110000]
    points = (rng.randrange(rng.choice(limit)) for _ in range(rng.randrange(9)))
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


def random_value(depth):
    kind = rng.randrange(8 if depth else 6)
    if kind < 2:
        return random_string()
    if kind == 2:
        return rng.choice([None, True, False])
    if kind == 3:
        return rng.choice([0, -1, 2**63 - 1, -2**63, 2**64, 10**30, rng.randrange(-10**6, 10**6)])
    if kind < 6:
        return rng.choice([random_float(), rng.uniform(-1e3, 1e3)])
    if kind == 6:
        return [random_value(depth - 1) for _ in range(rng.randrange(4))]
    return {random_string(): random_value(depth - 1) for _ in range(rng.randrange(4))}


def is_finite(value):
    return "NaN" not in json.dumps(value) and "Infinity" not in json.dumps(value)


floats = [random_float() for _ in range(600)]
lines = [json.dumps([struct.unpack("<q", struct.pack("<d", number))[0], repr(number)]) for number in floats]
values = [value for value in (random_value(3) for _ in range(250)) if is_finite(value)]
texts = [json.dumps([json.dumps(value, ensure_ascii=False), json.dumps(value), json.dumps(value, separators=(",", ":")),
                     json.dumps(value, ensure_ascii=False, indent=2)]) for value in values]
target = pathlib.Path(__file__).with_suffix(".json")
target.write_text('{"about": "written by json_writer_vectors.py",\n"floats": [\n' + ",\n".join(lines) +
                  '\n],\n"texts": [\n' + ",\n".join(texts) + "\n]}\n")
