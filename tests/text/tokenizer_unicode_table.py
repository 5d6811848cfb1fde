#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/text/unicode_tables.inc: where the reference's Unicode versions differ from ours.

The reference splits with a newer Unicode than PCRE2 10.42 and normalises with an older one than
utf8proc 2.8. Both differences are measured here by asking the three libraries, never copied.
Needs the PyPI package `tokenizers` and the two shared libraries; --check only compares.
"""
import argparse
import ctypes
import ctypes.util
import pathlib
import sys

OUTPUT = pathlib.Path(__file__).resolve().parents[2] / "src/text/unicode_tables.inc"
CATEGORIES = (
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn"
).split()
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
PCRE2_UTF_UCP = 0x00080000 | 0x00020000


def reference_members(pattern):
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    members = set()
    for first in range(0, len(CODE_POINTS), 65536):
        chunk = "".join(map(chr, CODE_POINTS[first : first + 65536]))
        for piece, _ in split.pre_tokenize_str(chunk):
            members.update(map(ord, piece))
    return members


class Pcre2:
    def __init__(self):
        self.lib = ctypes.CDLL(ctypes.util.find_library("pcre2-8"))
        for name in ("pcre2_compile_8", "pcre2_match_data_create_8"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.data = self.lib.pcre2_match_data_create_8(1, None)

    def members(self, pattern):
        error, where = ctypes.c_int(), ctypes.c_size_t()
        code = ctypes.c_void_p(
            self.lib.pcre2_compile_8(
                pattern.encode(), ctypes.c_size_t(len(pattern)), PCRE2_UTF_UCP,
                ctypes.byref(error), ctypes.byref(where), None,
            )
        )
        found = set()
        for code_point in CODE_POINTS:
            text = chr(code_point).encode()
            status = self.lib.pcre2_match_8(
                code, text, ctypes.c_size_t(len(text)), ctypes.c_size_t(0), 0,
                ctypes.c_void_p(self.data), None,
            )
            if status >= 0:
                found.add(code_point)
        return found


def utf8_length(code_point):
    return len(chr(code_point).encode())


def ranges(items):
    """Merges (code point, payload) pairs into [first, last, payload]."""
    merged = []
    for code_point, payload in sorted(items):
        if merged and merged[-1][1] == code_point - 1 and merged[-1][2] == payload:
            merged[-1][1] = code_point
        else:
            merged.append([code_point, code_point, payload])
    return merged


def split_table():
    pcre2 = Pcre2()
    ours, theirs = {}, {}
    for category in CATEGORIES:
        theirs.update(dict.fromkeys(reference_members(rf"\p{{{category}}}"), category))
        ours.update(dict.fromkeys(pcre2.members(rf"\p{{{category}}}"), category))
    differing = {c for c in CODE_POINTS if ours[c] != theirs[c]}
    differing |= reference_members(r"\s") ^ pcre2.members(r"\s")
    stand_ins = {}
    for code_point in CODE_POINTS:
        if code_point not in differing and code_point >= 0x100:
            stand_ins.setdefault((theirs[code_point], utf8_length(code_point)), code_point)
    return ranges((c, stand_ins[theirs[c], utf8_length(c)]) for c in differing)


def nfc_table():
    from tokenizers import normalizers

    proc = ctypes.CDLL(ctypes.util.find_library("utf8proc"))
    reference = normalizers.NFC()

    def ours(text):
        result = ctypes.POINTER(ctypes.c_char)()
        raw = text.encode()
        options = (1 << 1) | (1 << 3)  # UTF8PROC_STABLE | UTF8PROC_COMPOSE
        size = proc.utf8proc_map(raw, ctypes.c_ssize_t(len(raw)), ctypes.byref(result), options)
        return result[:size].decode()

    probes = ("a\u0345{}", "a{}\u0334", "a\u0315{}", "a{}\u0327", "{}")
    newer = {
        c
        for c in CODE_POINTS
        if c and any(ours(p.format(chr(c))) != reference.normalize_str(p.format(chr(c))) for p in probes)
    }
    # Compositions that only the newer tables know: the second half is what must not join.
    import unicodedata

    for c in CODE_POINTS:
        parts = unicodedata.normalize("NFD", chr(c))
        if len(parts) == 2 and ours(parts) != reference.normalize_str(parts):
            newer.add(ord(parts[1]))
    return ranges((c, 0) for c in newer)


def render():
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Written by tests/text/tokenizer_unicode_table.py: Unicode differences to the reference.",
        "constexpr StandIn kStandIns[] = {",
    ]
    lines += [f"    {{0x{a:X}, 0x{b:X}, 0x{s:X}}}," for a, b, s in split_table()]
    lines += ["};", "constexpr CodePointRange kUnknownToNfc[] = {"]
    lines += [f"    {{0x{a:X}, 0x{b:X}}}," for a, b, _ in nfc_table()]
    return "\n".join(lines + ["};", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed file")
    text = render()
    if parser.parse_args().check:
        sys.exit(0 if text == OUTPUT.read_text() else "unicode_tables.inc is out of date")
    OUTPUT.write_text(text)


if __name__ == "__main__":
    main()
