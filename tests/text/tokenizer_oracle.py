#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the tokenizer with the PyPI package `tokenizers` on thousands of strings.

tokenizer_oracle.py DRIVER            run the comparison (exit 77: package or model not there)
tokenizer_oracle.py --write-vectors   rewrite the committed synthetic tokenizers and vectors
"""
import json
import os
import pathlib
import random
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SKIPPED = 77
RANDOM_STRINGS = 6000
RANDOM_DECODES = 1500
CODE_POINTS_PER_LINE = 64

WORDS = {
    "latin": "the don't DON'T we'll i've Straße naïve façade ﬁne co-op e.g. O'Neil 's 'S 'ſ 're it’s".split(),
    "thai": "สวัสดีครับ ภาษาไทย น้ำ ก็ ผู้ใหญ่ เที่ยว กำลัง".split(),
    "arabic": "مرحبا السَّلَامُ عَلَيْكُمْ كِتَاب لا إله ١٢٣".split(),
    "hebrew": "שָׁלוֹם עִבְרִית תודה בְּרֵאשִׁית".split(),
    "devanagari": "नमस्ते हिन्दी क्षत्रिय ज़िंदगी १२३ क़".split(),
    "cjk": "世界 中文分词 漢字 日本語のテスト カタカナ が 가각 한국어 안녕하세요 𠀀𪛟 ㍿".split(),
    "jamo": ["\u1112\u1161\u11ab", "\u1100\u1161", "\uac00\u11a8", "\u1161\u11a8"],
    "emoji": ["👋", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️", "🫠", "\U0001fae9"],
    "code": ["int x=0;", "def f(a, b):\n    return a+b", "</div>", "a->b", "\t\tif(x){", "//", "0x1F", "1e-5"],
    "marks": ["e\u0301", "a\u0323\u0301", "a\u0301\u0323", "\u0344", "o\u0302\u0301", "\u212b", "\u2126",
              "\u1e9b\u0323", "\u0958", "\u0f73", "q\u0307\u0323", "\u0301", "\u0301\u0301\u0327" * 3,
              "\U00011935\U00011930", "a\u0898\u0345", "a\u0345\u0898", "\u1171e"],
    "space": [" ", "  ", "\n", "\r\n", "\t", "\n\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u180e", "\u200b",
              "\u0085", "\u2028", "\x1c", "\x0b", "   \t \r\n\r\n  "],
    "control": ["\x00", "\x01", "\x7f", "\u200d", "\ufeff", "\u00ad", "\ufffd", "\ufffe", "\U0010ffff"],
    "digits": ["1", "12", "12345", "٣٤", "Ⅷ", "½", "3.14", "\U0001ccf0"],
}
ADDED = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<|a|>", "<|a|>b", "<|a", "[L]",
         "[R]", "[LR]", "café", "cafe\u0301", "<keep>", "Å", "\u212b", "<|im_start|", "[L][R]", " [LR] "]
FIXED = ["", " ", "\n", "a", " leading\nline\tend ", "Hello, 世界 — مرحبا — Привет 👋", "x" * 200, " " * 300,
         "\n" * 120, "=" * 150, "ab" * 100, "a\u0301" * 90, "1" * 70, "<|im_start|>user\nhi<|im_end|>\n"]


def random_code_point(rng):
    limit = rng.choice([0x80, 0x250, 0x800, 0x3000, 0xFFFF, 0x20000, 0x10FFFF])
    code_point = rng.randrange(limit)
    return chr(code_point if not 0xD800 <= code_point < 0xE000 else 0x41)


def random_text(rng):
    """Bytes of one test string: a mix of scripts, code points, added tokens and raw bytes."""
    parts = []
    for _ in range(rng.choice([1, 2, 4, 8, 20])):
        kind = rng.randrange(12)
        if kind < 7:
            parts.append(rng.choice(WORDS[rng.choice(list(WORDS))]).encode())
            if rng.random() < 0.4:
                parts.append(rng.choice([b" ", b" ", b"\n", b"  ", b", "]))
        elif kind == 7:
            parts.append("".join(random_code_point(rng) for _ in range(rng.randrange(1, 6))).encode())
        elif kind == 8:
            parts.append(bytes(rng.randrange(256) for _ in range(rng.randrange(1, 6))))
        elif kind == 9:
            parts.append(rng.choice(ADDED).encode())
        elif kind == 10:
            parts.append(rng.choice(WORDS["space"]).encode() * rng.randrange(1, 5))
        else:
            parts.append(rng.choice(WORDS["marks"]).encode())
    text = b"".join(parts)
    if rng.random() < 0.1 and text:  # cut inside a code point
        text = text[: rng.randrange(len(text)) + 1]
    return text


# ---- the reference -----------------------------------------------------------------------------


class Reference:
    def __init__(self, path):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(path))

    def encode(self, raw, parse_special):
        self.tokenizer.encode_special_tokens = not parse_special
        return self.tokenizer.encode(raw.decode("utf-8", "replace"), add_special_tokens=False).ids

    def decode(self, ids, skip_special):
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special)

    def size(self):
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def encode_cases(rng, count):
    cases = [(text.encode(), flag) for text in FIXED + ADDED for flag in (True, False)]
    cases += [(word.encode(), True) for words in WORDS.values() for word in words]
    return cases + [(random_text(rng), rng.random() < 0.8) for _ in range(count)]


def exhaustive_cases():
    """Every assigned code point, after a letter and before marks: classes and NFC of all of Unicode.

    Planes 4 to 16 hold nothing but private use and a few tags: their edges are enough."""
    edges = [plane << 16 | low for plane in range(4, 17) for low in (*range(0x200), *range(0xFF00, 0x10000))]
    points = [chr(c) for c in (*range(0xD800), *range(0xE000, 0x40000), *edges)]
    for first in range(0, len(points), CODE_POINTS_PER_LINE):
        line = "".join(f"x{c}\u0301{c}\u0323\u0345{c}1" for c in points[first : first + CODE_POINTS_PER_LINE])
        yield line.encode(), True


def decode_cases(rng, reference, count):
    size = reference.size()
    for _ in range(count):
        if rng.random() < 0.5:
            ids = [rng.randrange(size + 3) for _ in range(rng.randrange(1, 12))]
        else:  # cut and shuffle a real encoding, so that code points break in plausible places
            ids = reference.encode(random_text(rng), True)
            ids = ids[rng.randrange(len(ids) + 1) :] + ids[: rng.randrange(len(ids) + 1)]
        yield ids, rng.random() < 0.5


def ask_driver(driver, path, questions):
    run = subprocess.run([driver, str(path)], input="\n".join(questions) + "\n", text=True,
                         capture_output=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{path}: driver failed: {run.stderr}")
    return run.stdout.split("\n")[: len(questions)]


def compare(driver, path, is_exhaustive):
    rng = random.Random(20261130)
    reference = Reference(path)
    encodes = encode_cases(rng, RANDOM_STRINGS) + (list(exhaustive_cases()) if is_exhaustive else [])
    decodes = list(decode_cases(rng, reference, RANDOM_DECODES))
    questions = [f"encode {int(flag)} {raw.hex()}" for raw, flag in encodes]
    questions += [f"decode {int(flag)} {' '.join(map(str, ids))}" for ids, flag in decodes]
    answers = ask_driver(driver, path, questions)
    wrong = 0
    for (raw, flag), answer in zip(encodes, answers):
        want = reference.encode(raw, flag)
        got = [int(word) for word in answer.split()]
        if got != want:
            wrong += 1
            if wrong <= 5:
                print(f"encode({raw!r}, {flag})\n  want {want}\n  got  {got}")
    for (ids, flag), answer in zip(decodes, answers[len(encodes) :]):
        want = reference.decode(ids, flag)
        got = bytes.fromhex(answer).decode()
        if got != want:
            wrong += 1
            if wrong <= 5:
                print(f"decode({ids}, {flag})\n  want {want!r}\n  got  {got!r}")
    print(f"{path.name}: {len(encodes)} encodes, {len(decodes)} decodes, {wrong} wrong")
    return wrong


# ---- synthetic tokenizers and committed vectors --------------------------------------------------

GPT2_STYLE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CLASSES = r"\p{Lu}+|\p{L}+|\p{Mn}+|\p{M}+|\p{Nd}+|\p{N}+|\p{P}+|\p{S}+|\p{Cf}+|\p{Cn}+|\s+"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def added(first_id, *tokens):
    names = ("content", "lstrip", "rstrip", "normalized", "special")
    return [{"id": first_id + at, "single_word": False, **dict(zip(names, token))} for at, token in enumerate(tokens)]


def train(num_merges):
    """Vocabulary and merges (as pairs) learnt from the words above, in a fixed order."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=256 + num_merges, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    corpus = [" ".join(words) for words in WORDS.values()] * 3 + FIXED
    tokenizer.train_from_iterator(corpus, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [list(pair) for pair in model["merges"]]


def build(vocab, merges, added_tokens, pre_tokenizers, normalizer, **model):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens,
            "normalizer": normalizer, "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
            "post_processor": None, "decoder": dict(BYTE_LEVEL),
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                      "ignore_merges": False, **model, "vocab": vocab, "merges": merges}}


def synthetic():
    vocab, merges = train(400)
    size = len(vocab)
    strip = added(size, ("<|a|>", False, False, False, True), ("<|a|>b", False, False, False, False),
                  ("[L]", True, False, False, True), ("[R]", False, True, False, True),
                  ("[LR]", True, True, True, False), ("café", False, False, True, False),
                  ("<keep>", False, False, False, False), ("  ", False, False, False, False))
    yield "a", build(vocab, [" ".join(pair) for pair in merges], strip, [split(GPT2_STYLE), BYTE_LEVEL], None,
                     ignore_merges=True)
    nfc = added(size, ("cafe\u0301", False, False, True, False), ("\u212b", False, False, True, False),
                ("<|im_start|>", False, False, False, True), ("<|im_end|>", False, False, False, True))
    yield "b", build(vocab, merges, nfc, [split(r"\p{N}{1,3}"), split(CASED), {**BYTE_LEVEL, "use_regex": True}],
                     {"type": "Sequence", "normalizers": [{"type": "NFC"}]})
    alphabet = {token: at for at, (token, _) in enumerate(sorted(vocab.items(), key=lambda item: item[1])[:256])}
    yield "c", build(alphabet, [], [], [split(CLASSES), {**BYTE_LEVEL, "add_prefix_space": True}], {"type": "NFC"})


def synthetic_path(name):
    return HERE / f"tokenizer_synthetic_{name}.json"


def write_vectors():
    vectors = []
    for name, content in synthetic():
        synthetic_path(name).write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
        reference = Reference(synthetic_path(name))
        rng = random.Random(7)
        for raw, flag in encode_cases(rng, 60):
            vectors.append({"tokenizer": name, "hex": raw.hex(), "parse_special": flag, "ids": reference.encode(raw, flag)})
        for ids, flag in decode_cases(rng, reference, 60):
            vectors.append({"tokenizer": name, "ids": ids, "skip_special": flag, "text": reference.decode(ids, flag)})
    lines = ",\n".join(json.dumps(vector, ensure_ascii=False, separators=(",", ":")) for vector in vectors)
    (HERE / "tokenizer_vectors.json").write_text(f"[\n{lines}\n]\n")


def model_paths():
    for path in (ROOT / "models/tiny/tokenizer.json", ROOT.parent / "shared/models/tiny_fp8/tokenizer.json"):
        if path.exists():
            yield path, False
            break
    for name in "abc":
        yield synthetic_path(name), name == "c"


def use_project_venv():
    """Restarts in the project's own environment when this interpreter lacks the package."""
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        python = ROOT / ".venv/bin/python"
        if not python.exists() or os.environ.get("TESSERA_ORACLE_RESTARTED"):
            print("skipped: no Python package `tokenizers`; see tools/requirements-dev.txt")
            sys.exit(SKIPPED)
        os.environ["TESSERA_ORACLE_RESTARTED"] = "1"
        os.execv(python, [str(python), *sys.argv])


def main():
    use_project_venv()
    if sys.argv[1:] == ["--write-vectors"]:
        write_vectors()
    elif len(sys.argv) == 2:
        sys.exit(1 if sum(compare(sys.argv[1], *item) for item in model_paths()) else 0)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
