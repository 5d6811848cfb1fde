# SPDX-License-Identifier: Apache-2.0
"""Templates and contexts for template_oracle.py: fixed ones, and generators of random ones."""

CONTEXT = {
    "a": 7, "b": -3, "z": 0, "f": 2.5, "g": -0.75, "big": 1e300, "tiny": 1e-7, "t": True, "n": None,
    "s": "Hello, World", "e": "", "u": "Grüße 世界 👋🏽 é", "ws": " \t two  words \n", "q": "it's \"quoted\" \\ \n\u200b",
    "l": [3, 1, 2], "m": [1, "x", None, 2.5, [4, 5], {"k": "v"}], "w": ["beta", "Alpha", "gamma", "alpha"],
    "d": {"name": "Ada", "items": 3, "n": {"deep": [10, 20, {"x": "y"}]}, "ü": 1, "get": "hidden"},
    "recs": [{"name": "b", "age": 3, "tags": ["x"]}, {"name": "A", "age": 1, "tags": []},
             {"name": "c", "age": 2}], "lines": "one\n\n  two\r\nthree\u2028four\n",
    "num": "42", "fnum": " -3.75e2 ", "long": 18446744073709551615, "nest": [[1, 2], [3, [4]], []],
}

WHITE_SPACE = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "a\n  {% if true %}  \n  b\n  {% endif %}  \nc\n\n", "  {{ 1 }}  \n  {{- 2 -}}  \n 3",
    "x {%- if true -%} \n y \n {%- endif -%} z", "{#- c -#}  a  {# d #}\n b {#\n e -#}\n\n f", "a\r\nb\rc\n", "\n", "", "\n\n",
    "  {%+ if true %}x{%+ endif %}\n", "{% if true +%}\nx{% endif %}", "a {#+ c +#}\nb", "\t{# c #}\n\tb", "é  {% if 1 %}  \n{% endif %}\u00a0\n",
    "{% raw %}{{ a }}{% endraw %}", "x\n  {% raw %}\n {{ a }} {% b %}\n  {% endraw %}\ny", "{%- raw -%}  \n a {%- endraw -%}  b", "{% raw %}{% endraw",
    "{{ a }}\n{{ b }}\n", "{{a}}{{b}}", "{ { a } }", "{{ '}}' }}", "{{ {'a': {'b': 1}}}}", "{{ {'a': 1}['a']}}", "{%if true%}x{%endif%}",
    "{% if true %}{{ 1 }}\n{% endif %}\n", "{#}", "{##}", "{#-#}x", "{{", "{{ a", "{% if", "{% if a %}", "{{ a }", "{{ a }}}", "}}", "%}",
    "{% set x = 1 -%}\n   {{ x }}", "{% for i in l %}\n  {{ i }}\n{% endfor %}\n", "  {# c #}  {% if true %}  {% endif %}  x", "{{+1}}", "{{ -1 }}", "{{- -1 -}}",
    "   {% if true %}a{% endif %}", "x   {% if true %}a{% endif %}", "{% if true %}\n\n\nx{% endif %}", "{% if true -%}\n\n\nx{% endif %}",
    "\u2003{%- if true %}x{% endif %}", "{{ a -}}\n  \n{# c #}\nx", "{{ a }}\n   {# c #} \n x", "{{ 1 -}}\n   {% if true %}y{% endif %}",
]

FIXED_CASES = [
    # Numbers and operators.
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }}",
    "{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1e16 }} {{ 1e15 }} {{ 1e-4 }} {{ 1e-5 }} {{ 123456789.125 }} {{ 0.1 + 0.2 }} {{ 1.0 }} {{ 5e-324 }}",
    "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ 1.0 / 0 }}", "{{ 0 ** -1 }}", "{{ 10 ** 400 }}", "{{ 1e400 }} {{ -1e400 }}", "{{ 10.0 ** 400 }}",
    "{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1_000 }} {{ 1_0.2_5 }} {{ 1e3 }} {{ 1.5E-2 }}", "{{ 012 }}", "{{ 00 }}", "{{ 1__0 }}", "{{ 1. }}", "{{ .5 }}",
    "{{ 1 + true }} {{ true + true }} {{ -true }} {{ +false }} {{ not 1 }} {{ true * 'ab' }} {{ 2 * [1] }} {{ (1,) * 3 }} {{ 'a' * -1 }}|",
    "{{ 1 == 1.0 }} {{ true == 1 }} {{ '1' == 1 }} {{ none == false }} {{ [1] == [1.0] }} {{ (1,) == [1] }} {{ {'a': 1} == {'a': true} }} {{ xx == yy }} {{ xx == none }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1 != 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ (1,) < (1, 0) }} {{ 9007199254740993 == 9007199254740992.0 }}",
    "{{ 1 < 'a' }}", "{{ none < 1 }}", "{{ xx < 1 }}", "{{ {} < {} }}", "{{ 1 + 'a' }}", "{{ 'a' + 1 }}", "{{ none + 1 }}", "{{ xx + 1 }}", "{{ 'a' + xx }}", "{{ [1] + (2,) }}", "{{ -'a' }}", "{{ [] - [] }}",
    "{{ 1 ~ 2 ~ none ~ true ~ 2.0 ~ xx ~ [1] }}", "{{ 1 ~ 2 + 3 }}", "{{ 2 + 3 ~ 4 * 5 }}", "{{ 2 ** 3 ** 2 }}", "{{ -3 | abs }} {{ 3 - -3 }}",
    "{{ 'a' in 'cat' }} {{ 'a' not in 'cat' }} {{ 1 in [1, 2] }} {{ 'k' in {'k': 1} }} {{ '' in '' }} {{ 1.0 in [1] }} {{ 'x' in xx }} {{ 2 in (1, 2) }} {{ not 1 in [1] }}",
    "{{ 1 in 'a' }}", "{{ 1 in 1 }}", "{{ 1 in none }}", "{{ [] in {} }}", "{{ 1 and 0 or 'x' }} {{ '' or [] or 'end' }} {{ 1 and 2 }} {{ none and 1 }} {{ xx or 'd' }}",
    "{{ 'y' if a > 3 else 'n' }} {{ 'y' if a < 3 }}| {{ 1 if false else 2 if false else 3 }} {{ (1 if false) is defined }}",
    "{{ 9223372036854775807 }} {{ long }} {{ long | tojson }} {{ [long] }} {{ long is integer }} {{ long == long }}",
    # Literals, strings and escapes.
    "{{ 'a\\n\\t\\x41\\u00e9\\U0001F44B\\101\\'\\\"\\\\\\q' }}", "{{ \"a'b\" }} {{ 'a' 'b' \"c\" }}", "{{ '\\x4' }}", "{{ '\\u12' }}", "{{ 'a\\\nb' }}", "{{ 'a\nb' }}", "{{ 'abc }}",
    "{{ [] }} {{ [1,] }} {{ () }} {{ (1,) }} {{ (1) }} {{ 1, 2 }} {{ {} }} {{ {'a': 1,} }} {{ {1: 2, none: 3, (1, 2): 4} }}", "{{ [,] }}", "{{ (,) }}", "{{ {1} }}", "{{ {[]: 1} }}",
    "{{ {1: 'a', 1.0: 'b', true: 'c'} }}", "{{ true }} {{ True }} {{ none }} {{ None }} {{ TRUE }}|", "{{ }}", "{{ a b }}", "{{ 1 2 }}", "{{ a.b.c }}", "{{ a..b }}", "{{ ! }}", "{{ a ! }}", "{{ $ }}", "{{ (1 }}", "{{ 1) }}", "{{ [1) }}",
    "{{ q }} {{ [q] }} {{ [u] }} {{ ['\\x00\\x7f\\xa0\\u2028\\ud7ff\\U000e0001'] }} {{ [\"'\"] }} {{ ['\"'] }} {{ ['\\'\"'] }} {{ [1.0, true, none] }} {{ {'a': [(), {}]} }}",
    # Subscripts, attributes, slices.
    "{{ l[0] }} {{ l[-1] }} {{ l[9] }}| {{ l.0 }} {{ s[1] }} {{ s[-1] }} {{ s[99] }}| {{ u[0] }}{{ u[6:8] }}{{ u[-2:] }} {{ d['name'] }} {{ d.name }} {{ d.nope }}| {{ d['nope'] }}|",
    "{{ d.items() }} {{ d['items'] }} {{ d.get('name') }} {{ d['get'] }} {{ d.get('x') }} {{ d.get('x', 5) }} {{ d.keys() | list }} {{ d.values() | list }}", "{{ d.n.deep[2].x }} {{ d['n']['deep'][0] }}", "{{ d.nope.x }}", "{{ xx.y }}", "{{ xx['y'] }}", "{{ xx[0] }}", "{{ xx() }}", "{{ none.x }}|", "{{ n[0] }}|", "{{ a.x }}|{{ a[0] }}|", "{{ l['x'] }}|{{ l[1.5] }}|{{ l[none] }}|{{ l[true] }}",
    "{{ l[::-1] }} {{ l[1:] }} {{ l[:1] }} {{ l[:] }} {{ l[::2] }} {{ l[-2:-1] }} {{ l[5:] }} {{ l[1:2:1] }} {{ l[none:none] }} {{ s[::-1] }} {{ s[1:4] }} {{ s[::3] }} {{ u[::-1] }} {{ (1, 2, 3)[1:] }} {{ e[1:] }}|", "{{ l[::0] }}", "{{ l['a':] }}", "{{ n[1:] }}", "{{ d[1:] }}", "{{ xx[1:] }}", "{{ l[99999999999:] }}{{ l[-99999999999:99999999999:99999999999] }}", "{{ l[] }}|", "{{ l[1,2] }}|", "{{ d[[]] }}|",
    "{{ range(5) }} {{ range(1, 5) }} {{ range(5, 1, -2) | list }} {{ range(0) | list }} {{ range(3)[1] }} {{ range(10)[::3] }} {{ range(5) | length }} {{ 3 in range(5) }} {{ range(3) == range(0, 3) }}", "{{ range(100001) }}", "{{ range(1, 2, 0) }}", "{{ range('a') }}", "{{ range() }}", "{{ range(1.5) }}", "{{ range(true) | list }}", "{{ range(200000, 0) | list }}",
    "{{ l.append(4) }}", "{{ l.append is defined }}", "{{ d.update({}) }}", "{{ s.__class__ }}|", "{{ s.foo }}|{{ s['upper']() }}", "{{ l.count(1) }} {{ l.index(2) }} {{ (1, 2).index(2) }} {{ l.copy() }} {{ d.copy() == d }}", "{{ l.index(99) }}",
    # String methods.
    "{{ s.upper() }} {{ s.lower() }} {{ 'straße ǆ x'.title() }} {{ 'hELLO wORLD'.capitalize() }} {{ \"they're bill's 3rd\".title() }} {{ \"they're bill's (a) b-c <d 3rd\" | title }}",
    "[{{ ws.strip() }}][{{ ws.lstrip() }}][{{ ws.rstrip() }}][{{ 'xxabxx'.strip('x') }}][{{ 'xyabyx'.lstrip('yx') }}][{{ 'ab\u3000\u00a0'.rstrip() }}][{{ 'ab'.strip(none) }}][{{ 'éaé'.strip('é') }}]",
    "{{ s.split() }} {{ s.split(', ') }} {{ ws.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a,b,,c'.split(',', 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ ' a b c '.split(none, 1) }} {{ 'a-b-c'.rsplit('-', 1) }} {{ ' a b c '.rsplit(none, 1) }} {{ ' a  b c '.rsplit() }} {{ 'a b'.split(maxsplit=0) }} {{ 'a--b'.split('--')[-1] }} {{ 'ababa'.rsplit('aba') }} {{ 'ababa'.split('aba') }}", "{{ 'a'.split('') }}", "{{ 'a'.split(1) }}",
    "{{ s.startswith('Hell') }} {{ s.endswith(('x', 'ld')) }} {{ s.startswith('') }} {{ s.endswith('') }} {{ ''.startswith('a') }} {{ s.startswith(('a', 'b')) }} {{ s.startswith(()) }}", "{{ s.startswith(1) }}", "{{ s.startswith(['H']) }}", "{{ s.startswith() }}", "{{ s.upper(1) }}", "{{ s.nope() }}",
    "{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'abc'.replace('', '-') }} {{ 'abc'.replace('', '-', 2) }} {{ ''.replace('', 'x') }} {{ 'aaa'.replace('aa', 'b') }} {{ u.replace('世', 'W') }} {{ 'éé'.replace('', '.') }}",
    "{{ ', '.join(w) }} {{ ''.join([]) }} {{ '-'.join('abc') }} {{ ','.join({'a': 1, 'b': 2}) }}", "{{ ','.join([1]) }}", "{{ ','.join(none) }}", "{{ s.find('o') }} {{ s.rfind('o') }} {{ s.find('zz') }} {{ u.find('世') }} {{ u.rfind('é') }} {{ s.index('W') }} {{ s.count('l') }} {{ 'aaaa'.count('aa') }} {{ 'ab'.count('') }} {{ 'abc'.find('') }} {{ 'abc'.rfind('') }}", "{{ s.index('zz') }}",
    "{{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'AB'.isupper() }} {{ 'aB'.islower() }} {{ '1'.isupper() }} {{ 'a-b'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'ab'.partition('-') }} {{ 'ab'.rpartition('-') }}",
    "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ 'abc'.removeprefix('x') }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'ab'.ljust(4) }}| {{ 'ab'.rjust(4, '*') }} {{ 'ab'.zfill(1) }} {{ lines.splitlines() }} {{ lines.splitlines(true) }}",
    # Filters.
    "{{ s | upper | lower }} {{ 5 | upper }} {{ none | lower }} {{ xx | upper }}| {{ 'aB' | capitalize }} {{ ws | trim }}| {{ 'xax' | trim('x') }} {{ 5 | trim }} {{ xx | trim }}| {{ [1] | string }} {{ s | replace('l', 'r') }} {{ 121 | replace(1, 3) }} {{ s | replace('l', 'r', 1) }}",
    "{{ l | length }} {{ s | length }} {{ u | length }} {{ d | count }} {{ xx | length }} {{ d.items() | length }}", "{{ 5 | length }}", "{{ none | length }}", "{{ (l | map('abs')) | length }}", "{{ xx | default('D') }} {{ none | default('D') }} {{ none | default('D', true) }} {{ '' | d('D', boolean=true) }} {{ 0 | d(1) }} {{ xx | d }}| {{ d.nope | d('E') }}", "{{ d.nope.nope | default('x') }}",
    "{{ w | join }} {{ w | join(', ') }} {{ [1, none, 2.5] | join('-') }} {{ 'abc' | join('.') }} {{ recs | join(', ', attribute='name') }} {{ d | join(',') }} {{ xx | join }}|", "{{ 5 | join }}", "{{ l | first }} {{ l | last }} {{ [] | first }}| {{ [] | last }}| {{ s | first }} {{ s | last }} {{ d | first }} {{ d | last }} {{ xx | first }}| {{ xx | last }}|", "{{ none | first }}", "{{ 5 | last }}",
    "{{ l | sort }} {{ l | sort(reverse=true) }} {{ w | sort }} {{ w | sort(case_sensitive=true) }} {{ recs | sort(attribute='age') | map(attribute='name') | list }} {{ recs | sort(attribute='name', reverse=true) | map(attribute='age') | join }} {{ [] | sort }} {{ 'hello' | sort }} {{ [[2], [1, 5], [1]] | sort }} {{ [true, 0, 2] | sort }}", "{{ m | sort }}", "{{ [1, 'a'] | sort }}", "{{ 5 | sort }}", "{{ recs | sort(attribute='age,name') | map(attribute='name') | list }}", "{{ recs | sort(attribute='tags') }}",
    "{{ w | unique | list }} {{ w | unique(true) | list }} {{ [1, 1.0, true, 2] | unique | list }} {{ recs | unique(attribute='age') | list | length }}", "{{ [[]] | unique | list }}", "{{ l | reverse | list }} {{ s | reverse }} {{ u | reverse }} {{ d | reverse | list }} {{ range(3) | reverse | list }} {{ (l | map('string')) | reverse }} {{ xx | reverse | list }}", "{{ 5 | reverse }}", "{{ l | list }} {{ s | list }} {{ d | list }} {{ xx | list }} {{ (1, 2) | list }}", "{{ 5 | list }}",
    "{{ d | items | list }} {{ xx | items | list }} {{ d | dictsort }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(true) }} {{ {'b': 1, 'A': 2} | dictsort(by='value') }} {{ {'b': 1, 'A': 2} | dictsort(reverse=true) }}", "{{ l | items | list }}", "{{ 5 | items }}", "{{ l | dictsort }}", "{{ d | dictsort(by='x') }}",
    "{{ recs | map(attribute='name') | list }} {{ recs | map(attribute='tags.0') | list }} {{ recs | map(attribute='tags', default='-') | list }} {{ w | map('upper') | join(',') }} {{ w | map('replace', 'a', 'o') | list }} {{ [[1, 2], [3]] | map('first') | list }} {{ nest | map('length') | list }} {{ recs | map(attribute='zz') | list }} {{ [] | map('upper') | list }}", "{{ l | map }}", "{{ l | map('nope') | list }}", "{{ none | map('upper') | list }}", "{{ l | map(attribute='x', foo=1) | list }}",
    "{{ m | select | list }} {{ m | reject | list }} {{ m | select('string') | list }} {{ l | select('gt', 1) | list }} {{ l | reject('odd') | list }} {{ recs | selectattr('age', 'ge', 2) | map(attribute='name') | list }} {{ recs | rejectattr('tags') | map(attribute='name') | list }} {{ recs | selectattr('name', 'equalto', 'A') | list }} {{ recs | selectattr('tags', 'defined') | list | length }} {{ recs | selectattr('name', 'in', ['c', 'b']) | map(attribute='age') | sum }} {{ xx | select | list }} {{ none | select | list }} {{ 0 | select('odd') | list }}", "{{ l | select('nope') | list }}", "{{ 5 | select | list }}", "{{ l | selectattr | list }}", "{{ l | select('==', 3) | list }} {{ l | select('<', 3) | list }}",
    "{{ l | sum }} {{ [1.5, 2] | sum }} {{ recs | sum(attribute='age') }} {{ [] | sum }} {{ [] | sum(start=5) }} {{ [[1], [2]] | sum(start=[]) }} {{ l | min }} {{ l | max }} {{ w | min }} {{ w | max }} {{ [] | min }}| {{ recs | max(attribute='age') }}", "{{ w | sum }}", "{{ m | max }}",
    "{{ -5 | abs }} {{ (-5) | abs }} {{ (-2.5) | abs }} {{ true | abs }}", "{{ 'a' | abs }}", "{{ xx | abs }}", "{{ 42.55 | round }} {{ 42.55 | round(1) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ -2.5 | round }} {{ 2.675 | round(2) }} {{ 42.1 | round(method='ceil') }} {{ 42.19 | round(1, 'floor') }} {{ 5 | round }} {{ 5 | round(2, 'ceil') }} {{ 1e22 | round(2) }}", "{{ 'a' | round }}", "{{ 1 | round(method='x') }}",
    "{{ '42' | int }} {{ ' 42 ' | int }} {{ '4_2' | int }} {{ '42.9' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ 3.9 | int }} {{ -3.9 | int }} {{ true | int }} {{ none | int }} {{ '0x1F' | int(base=16) }} {{ '1F' | int(0, 16) }} {{ '0b11' | int(base=0) }} {{ '-0x1f' | int(base=16) }} {{ '' | int }} {{ [] | int }} {{ 'inf' | int }} {{ '1e3' | int }} {{ '+5' | int }} {{ '--5' | int }} {{ '5' | int(base=99) }} {{ '_5' | int }} {{ '010' | int }} {{ '010' | int(3, 0) }}", "{{ xx | int }}", "{{ big * big | int }}", "{{ (big * big) | int }}",
    "{{ '1.5' | float }} {{ ' 1e3 ' | float }} {{ 'x' | float }} {{ 'x' | float(2) }} {{ 3 | float }} {{ true | float }} {{ none | float }} {{ 'nan' | float }} {{ '-Infinity' | float }} {{ '1_0.5' | float }} {{ '.5' | float }} {{ '5.' | float }} {{ '0x10' | float }} {{ '1e' | float }} {{ '' | float }}", "{{ xx | float }}",
    "{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent('> ', blank=true) }}|{{ '' | indent }}|{{ 'a\n' | indent }}|{{ lines | indent(1) }}", "{{ 5 | indent }}", "{{ s | safe }} {{ d | attr('name') }}| {{ s | attr('upper') is defined }}", "{{ s | nope }}", "{% if false %}{{ s | nope }}{% endif %}x", "{{ 'x' if true else (s | nope) }}", "{% if true %}{{ s | nope }}{% endif %}", "{% if false %}{% for i in l %}{{ s | nope }}{% endfor %}{% endif %}", "{{ s | upper(1) }}", "{{ s | trim(x=1) }}", "{{ s | replace('a') }}", "{% macro f() %}{{ s | nope }}{% endmacro %}x", "{{ 5 is nope }}", "{% if false %}{{ 5 is nope }}{% endif %}",
    # JSON.
    "{{ d | tojson }} {{ m | tojson }} {{ u | tojson }} {{ q | tojson }} {{ 1.0 | tojson }} {{ [1e16, 1e-7, 0.1, -0.0, 1e400, -1e400] | tojson }} {{ none | tojson }} {{ true | tojson }} {{ (1, 2) | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ '\\x00\\x1f\\x7f\\u2028/<>&\\b\\f' | tojson }} {{ [] | tojson }} {{ {} | tojson }}",
    "{{ d | tojson(indent=2) }}\n{{ m | tojson(indent=4) }}\n{{ [] | tojson(indent=2) }} {{ [[]] | tojson(indent=0) }} {{ {'a': {}} | tojson(indent='\t') }} {{ d | tojson(separators=(',', ':')) }} {{ u | tojson(ensure_ascii=true) }} {{ '\\x7f' | tojson(true) }} {{ {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true) }} {{ l | tojson(indent=1, separators=(' ;', '=')) }}", "{{ xx | tojson }}", "{{ range(3) | tojson }}", "{{ d.items() | tojson }}", "{{ {(1, 2): 3} | tojson }}", "{{ [xx] | tojson }}", "{{ namespace() | tojson }}", "{{ (l | map('abs')) | tojson }}",
    # Tests.
    "{% for x in [1, 0, -2, 2.5, true, false, none, '', 'Ab', 'AB', 'ab', [], (), {}, range(2), xx, l | map('abs'), d.items()] %}{{ x is defined }},{{ x is undefined }},{{ x is none }},{{ x is string }},{{ x is number }},{{ x is integer }},{{ x is float }},{{ x is boolean }},{{ x is true }},{{ x is false }},{{ x is mapping }},{{ x is iterable }},{{ x is sequence }},{{ x is callable }}\n{% endfor %}",
    "{{ 3 is odd }} {{ 3 is even }} {{ -3 is odd }} {{ 2.0 is even }} {{ 6 is divisibleby 3 }} {{ 6 is divisibleby(4) }} {{ 3 is eq 3 }} {{ 3 is ne(4) }} {{ 3 is gt 2 }} {{ 3 is in [3] }} {{ 3 is not in [3] }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 3 is sameas 3.0 }} {{ none is sameas none }} {{ true is sameas true }} {{ 3 is not none }} {{ not 3 is none }} {{ 'upper' is filter }} {{ 'odd' is test }} {{ 'zz' is filter }}", "{{ 'a' is odd }}", "{{ 1 is divisibleby 0 }}", "{{ xx is odd }}", "{{ 1 is defined is true }}", "{{ 1 is }}", "{{ 1 is eq }}", "{{ 3 is eq 3 and 2 is eq 2 or false }} {{ 3 is eq 2 + 1 }} {{ 3 is eq -3 }}", "{{ xx.yy is defined }}", "{{ d.yy is defined }} {{ d.yy.zz is defined }}", "{{ 'a' is eq 'a' 'b' }}", "{{ 4 is divisibleby 2 if true else 3 }} {{ 5 is eq(5) | string }}",
    # Control flow and scopes.
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}[{{ loop.previtem }}|{{ loop.nextitem }}]{{ loop.previtem is defined }}{{ loop.nextitem is defined }}\n{% endfor %}", "{% for i in l %}{{ loop }}{{ loop['index'] }}{{ loop | length }}{{ loop.nope }}{% endfor %}",
    "{% for i in [] %}x{% else %}empty{% endfor %}{% for i in [1] %}x{% else %}empty{% endfor %}{% for i in xx %}x{% else %}undef{% endfor %}", "{% for i in none %}{% endfor %}", "{% for i in 5 %}{% endfor %}", "{% for i in 5 %}", "{% for i in l if i > 1 %}{{ loop.index }}/{{ loop.length }}:{{ i }}{{ loop.last }} {% else %}none{% endfor %}", "{% for i in l if i > 9 %}x{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }};{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for c in 'aé' %}{{ c }}.{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in ['xy', [1, 2], {'k': 1, 'l': 2}] %}{{ a }}{{ b }}{% endfor %}", "{% for loop in l %}{% endfor %}", "{% for 1 in l %}{% endfor %}", "{% for a.b in l %}{% endfor %}", "{% for a in 1, 2 %}{{ a }}{% endfor %}", "{% for a in l recursive %}{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% else %}E{% endfor %}", "{% for i in [1, 2] %}{% continue %}{% else %}E{% endfor %}", "{% for i in [1, 2] %}{% break %}{% else %}E{% endfor %}", "{% break %}", "{% for i in l %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}", "{% for i in l %}{% for j in l %}{{ i }}{{ j }}{% if j == 1 %}{% break %}{% endif %}{% endfor %}|{% endfor %}", "{% for i in l %}{{ loop.index }}{% for j in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}{{ loop }}|",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + i %}{{ x }},{% endfor %}{{ x }}", "{% set ns = namespace(c=0, s='') %}{% for i in l %}{% set ns.c = ns.c + i %}{% set ns.s = ns.s ~ i %}{% endfor %}{{ ns.c }}{{ ns.s }}{{ ns.nope }}|{{ ns['c'] }}{{ ns }}", "{% set ns = {} %}{% set ns.x = 1 %}", "{% set zz.x = 1 %}", "{{ namespace({'a': 1}, b=2).b }} {{ namespace([('a', 5)]).a }}", "{% set ns = namespace(done=false) %}{% for i in range(9) if not ns.done %}{{ i }}{% if i == 3 %}{% set ns.done = true %}{% endif %}{% endfor %}", "{% set ns = namespace(done=false) %}{% for i in range(9) if not ns.done %}{{ i }}{{ loop.last }}{% if i == 3 %}{% set ns.done = true %}{% endif %}{% endfor %}",
    "{% set x, y = 1, 2 %}{{ x }}{{ y }}{% set (x, y) = [3, 4] %}{{ x }}{{ y }}{% set x = 1, %}{{ x }}", "{% set x, y = 1 %}", "{% set x, y = 1, 2, 3 %}", "{% set x %}a{{ 1 }}b{% endset %}{{ x }}{{ x is string }}", "{% set x | upper | replace('A', 'z') %}ab{% endset %}{{ x }}", "{% set x | length %}héllo{% endset %}{{ x + 1 }}", "{% set x %}{% set y = 5 %}{{ y }}{% endset %}{{ x }}{{ y }}|", "{% set 1 = 2 %}", "{% set x.y.z = 2 %}", "{% set x[0] = 1 %}", "{% set true = 1 %}", "{% set x = %}", "{% set x == 1 %}", "{% set ns = namespace() %}{% set ns.t %}block{% endset %}{{ ns.t }}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}",
    "{% if a == 7 %}A{% elif a == 8 %}B{% else %}C{% endif %}{% if z %}A{% elif e %}B{% else %}C{% endif %}{% if xx %}A{% elif t %}B{% endif %}{% if [] or {} or () or '' or 0 or 0.0 or none %}A{% endif %}{% if 1: %}x{% endif %}", "{% if %}{% endif %}", "{% if a %}{% else %}{% else %}{% endif %}", "{% if a %}{% endfor %}", "{% endif %}", "{% else %}", "{% nope %}", "{% if a %}{% elif %}{% endif %}", "{% if true %}{% set x = 5 %}{% endif %}{{ x }}", "{% 5 %}", "{% %}", "{% if a b %}{% endif %}", "{% for %}{% endfor %}", "{% for x l %}{% endfor %}", "{% if 1, 2 %}t{% endif %}",
    "{% with x = 1, y = 2 %}{{ x + y }}{% set x = 9 %}{{ x }}{% endwith %}{{ x }}|", "{% with %}{% set q2 = 1 %}{{ q2 }}{% endwith %}{{ q2 }}|", "{% filter upper %}ab{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}xa{% endfilter %}", "{% filter nope %}x{% endfilter %}", "{% generation %}a{% set x = 5 %}{{ x }}{% endgeneration %}{{ x }}|", "{% for i in l %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}",
    # Macros.
    "{% macro f(a, b=2, c='x') %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(1, c='y') }}{{ f(a=5, b=6) }}{{ f() }}{{ f(*[1, 2]) }}{{ f(**{'a': 7, 'c': 8}) }}{{ f(1, *[2], c=3) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}", "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, x=4) }}{{ f() }}", "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(3) }}", "{% macro f(a=1, b) %}{% endmacro %}", "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro f() %}{{ x }}{{ s }}{% endmacro %}{% set x = 4 %}{{ f() }}", "{% set x = 1 %}{% macro f() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}", "{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}{{ f is defined }}", "{% macro f() %}x{% endmacro %}{{ f() | upper }}{{ f() ~ f() }}{{ f() is string }}{{ f() | length }}{{ f is callable }}{{ f is defined }}", "{% macro f(x) %}{% for i in x recursive %}{% endfor %}{% endmacro %}", "{% macro f() %}\n  a\n{% endmacro %}\n{{ f() }}|", "{% macro f(a, b %}", "{% macro 1() %}{% endmacro %}", "{{ f() }}", "{% macro outer() %}{% macro inner() %}i{% endmacro %}{{ inner() }}o{% endmacro %}{{ outer() }}{{ inner is defined }}", "{% macro f(l) %}{{ l | join('-') }}{% endmacro %}{{ f([1, 2]) }}", "{{ a() }}", "{{ 'x'() }}", "{{ s.upper()() }}", "{{ s.upper }}", "{{ f(1 }}", "{{ range(1, 2, }}", "{{ range(3,) | list }}", "{{ dict(a=1, b=2) }} {{ dict({'a': 1}, b=2) }} {{ dict([('x', 1)]) }} {{ dict() }}", "{{ dict(1) }}", "{{ f(a=1, 2) }}", "{{ range(**{}) }}", "{{ range(*[2, 4]) | list }}", "{{ range(*5) }}", "{{ dict(**{'a': 1}) }}", "{{ dict(**[1]) }}",
    "{{ raise_exception('stop ' ~ a) }}", "{% if false %}{{ raise_exception('no') }}{% endif %}ok", "{{ raise_exception }}", "{{ raise_exception() }}", "{{ xx }}|{{ xx | string }}|{{ [xx] }}|{{ xx ~ 'a' }}|{{ not xx }}", "{% set x = xx %}{{ x is defined }}{{ x }}|", "{{ xx | join(',') }}|{{ xx | list }}{{ xx | tojson }}", "{{ tools is defined }}{{ (tools or []) | length }}",
    "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% call f() %}{% endcall %}", "{% do x %}", "{{ u | upper }}{{ u | lower }}{{ 'ß' | upper }}{{ 'ΑΒ' | lower }}{{ 'привет' | capitalize }}{{ '世界' | title }}", "{{ nest }}{{ nest[1][1][0] }}{{ nest | tojson }}{{ nest == [[1, 2], [3, [4]], []] }}", "{{ d.items() }} {{ d.keys() }} {{ d.values() }} {{ 'name' in d.keys() }} {{ ('name', 'Ada') in d.items() }}", "{{ ((((((((((((1)))))))))))) }} {{ [[[[[[[[1]]]]]]]] }}", "{{ a\n+\nb }}{{\n'x'\n}}", "{{ 'a' if 'b' if 'c' }}", "{{ not not a }} {{ - - a }} {{ -a.x }}|", "{{ -f | round | int }} {{ f | round | int }} {{ 2 - 1 | abs }} {{ (2, 1) | sort }}", "{{ a if b else c if d else e }}", "{{ {'a': 1}.a }} {{ [1, 2][0] }} {{ 'abc'[1] }} {{ (1, 2)[1] }} {{ {'a': [1]}['a'][0] }} {{ 'x'.upper() }} {{ 1 .x }}|",
]

NUMBERS = ["a", "b", "z", "f", "g", "t", "0", "1", "-2", "3", "2.5", "l | length", "s | length", "l[0]", "d.items | d(3)", "recs[1].age",
           "num | int", "loop.index | d(4)", "1e3", "s.count('l')", "l | sum", "true", "u.find('世')"]
STRINGS = ["s", "e", "u", "ws", "num", "lines", "q", "'x'", "'ab c'", "''", "'é世'", "w[0]", "d.name", "d['ü'] | string", "recs[0]['name']",
           "m[1]", "l | join(',')", "d | tojson", "'a-b-c'", "\"it's\""]
LISTS = ["l", "m", "w", "recs", "nest", "[]", "[1, 'b']", "(1, 2)", "range(4)", "d.keys() | list", "s.split()", "d.n.deep", "w | sort", "recs[0].tags"]
OTHERS = ["n", "none", "xx", "d.nope", "d", "{}", "{'k': 1}", "d.n", "recs[0]", "namespace(a=1)", "d.items()"]
NUMBER_OPERATORS = ["+", "-", "*", "/", "//", "%"]
COMPARISONS = ["==", "!=", "<", "<=", ">", ">="]
STRING_FILTERS = ["upper", "lower", "trim", "capitalize", "title", "replace('a', 'b')", "replace('l', 'LL', 1)", "indent(1)", "string", "reverse",
                  "trim('ax')", "indent(2, true, true)", "default('D')", "tojson", "list | join('.')", "first", "last", "int", "float"]
STRING_METHODS = [".upper()", ".lower()", ".strip()", ".lstrip()", ".rstrip('d')", ".title()", ".replace('l', '')", ".strip('xa')", ".capitalize()",
                  ".split(' ')[-1]", ".split()[0]", ".removeprefix('a')", ".partition('-')[2]", ".rsplit('-', 1)[0]", ".zfill(5)", ".split('\\n')[0]"]
STRING_TESTS = [".startswith('a')", ".endswith(('d', ' '))", ".isdigit()", ".isupper()", ".islower()", ".isalpha()", ".isspace()"]
LIST_FILTERS = ["list", "sort", "reverse | list", "unique | list", "map('string') | list", "select | list", "reject('none') | list",
                "select('string') | list", "map(attribute='name') | list", "selectattr('age', 'defined') | list", "sort(reverse=true)",
                "map('upper') | list", "rejectattr('tags') | list", "select('number') | map('int') | list", "map('default', 0) | list"]
LIST_TO_NUMBER = ["length", "count", "select('number') | sum", "select('number') | min", "select('string') | list | length"]
LIST_TO_STRING = ["join", "join(',')", "tojson", "map('string') | join('-')", "tojson(indent=1)", "string", "first | string", "last | d('L') | string"]
TESTS = ["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "true", "false", "mapping", "iterable",
         "sequence", "callable", "eq 1", "ne(2)", "in [1, 2]", "lower", "upper", "sameas true"]
SLICES = ["[1:]", "[::-1]", "[:2]", "[::2]", "[1:2]", "[-5:-1]", "[5:1:-2]", "[-2:]", "[:-1]", "[a:]", "[z:a]", "[b:]"]
ODDITIES = [".name", "['name']", "[0]", "[-1]", ".nope", "[none]", ".0", "()", ".items()", ".get('k')", "[s]", " | length", " | sort", " + 1", " ~ 1",
            " < 2", " | join", " | tojson", " | first", " | abs", " | int", " is odd", " in l", " | items | list", " | dictsort", " | sum", ".x.y"]


def random_number(rng, depth):
    if depth <= 0 or rng.random() < 0.2:
        return rng.choice(NUMBERS)
    kind = rng.randrange(8)
    if kind < 4:
        text = f"{random_number(rng, depth - 1)} {rng.choice(NUMBER_OPERATORS)} {random_number(rng, depth - 1)}"
        return f"({text})" if rng.random() < 0.6 else text
    if kind == 4:
        return f"({random_number(rng, depth - 1)}) | {rng.choice(['abs', 'int', 'float', 'round', 'round(1)', 'd(1)', 'string | int'])}"
    if kind == 5:
        return f"({random_list(rng, depth - 1)}) | {rng.choice(LIST_TO_NUMBER)}"
    if kind == 6:
        return f"(-{random_number(rng, 0)})" if rng.random() < 0.5 else f"({random_string(rng, depth - 1)}) | length"
    return f"({random_number(rng, depth - 1)} if {random_truth(rng, depth - 1)} else {random_number(rng, depth - 1)})"


def random_string(rng, depth):
    if depth <= 0 or rng.random() < 0.15:
        return rng.choice(STRINGS)
    kind = rng.randrange(9)
    if kind < 2:
        return f"({random_string(rng, depth - 1)} {rng.choice(['+', '~'])} {random_string(rng, depth - 1)})"
    if kind < 4:
        return f"({random_string(rng, depth - 1)}) | {rng.choice(STRING_FILTERS)}"
    if kind == 4:
        return f"({random_string(rng, depth - 1)} ~ s){rng.choice(STRING_METHODS)}"
    if kind == 5:
        return f"(s ~ {random_string(rng, depth - 1)}){rng.choice(SLICES)}"
    if kind == 6:
        return f"({random_list(rng, depth - 1)}) | {rng.choice(LIST_TO_STRING)}"
    if kind == 7:
        return f"({random_any(rng, depth - 1)}) ~ {random_number(rng, depth - 1)}"
    return f"({random_string(rng, depth - 1)} if {random_truth(rng, depth - 1)} else {random_string(rng, depth - 1)})"


def random_list(rng, depth):
    if depth <= 0 or rng.random() < 0.2:
        return rng.choice(LISTS)
    kind = rng.randrange(6)
    if kind < 2:
        return f"({random_list(rng, depth - 1)}) | {rng.choice(LIST_FILTERS)}"
    if kind == 2:
        return f"[{random_any(rng, depth - 1)}, {random_any(rng, depth - 1)}]"
    if kind == 3:
        return f"({random_list(rng, 0)} | list + l){rng.choice(SLICES)}"
    if kind == 4:
        return f"({random_list(rng, depth - 1)} | list + {random_list(rng, depth - 1)} | list)"
    return f"({random_string(rng, depth - 1)}).split({rng.choice(['', repr(' '), repr('l')])})"


def random_truth(rng, depth):
    if depth <= 0:
        return rng.choice(["t", "z", "a > 3", "xx", "s", "e", "l", "n is none", "true", "not b"])
    kind = rng.randrange(8)
    if kind == 0:
        return f"{random_number(rng, depth - 1)} {rng.choice(COMPARISONS)} {random_number(rng, depth - 1)}"
    if kind == 1:
        return f"{random_string(rng, depth - 1)} {rng.choice([*COMPARISONS, 'in', 'not in'])} {random_string(rng, depth - 1)}"
    if kind == 2:
        return f"{random_any(rng, depth - 1)} {rng.choice(['in', 'not in'])} ({random_list(rng, depth - 1)})"
    if kind == 3:
        return f"({random_any(rng, depth - 1)}) is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    if kind == 4:
        return f"({random_number(rng, depth - 1)} | int) is {rng.choice(['odd', 'even', 'divisibleby 2', 'gt 1', 'lt(2.5)'])}"
    if kind == 5:
        return f"(not {random_truth(rng, depth - 1)})"
    if kind == 6:
        return f"({random_string(rng, depth - 1)} ~ e){rng.choice(STRING_TESTS)}"
    return f"({random_truth(rng, depth - 1)} {rng.choice(['and', 'or'])} {random_any(rng, depth - 1)})"


def random_any(rng, depth):
    kind = rng.randrange(10)
    if kind == 0:
        return rng.choice(OTHERS)
    if kind == 1 and depth > 0:
        return f"({random_any(rng, depth - 1)}){rng.choice(ODDITIES)}"
    return rng.choice([random_number, random_string, random_list, random_truth])(rng, depth)


random_expression = random_any


def random_block(rng, depth):
    pieces = []
    for _ in range(rng.randrange(1, 4)):
        kind = rng.randrange(12) if depth > 0 else rng.randrange(5)
        dash = [rng.choice(["", "", "-"]) for _ in range(4)]
        gap = rng.choice(["", " ", "\n", "  \n ", "\t"])
        expression = random_expression(rng, rng.randrange(3))
        if kind < 2:
            pieces.append(rng.choice(["text", " x ", "\n", "é\n  ", "}", "{ ", "%}", "\n\n"]))
        elif kind < 4:
            pieces.append("{{%s %s %s}}" % (dash[0], expression, dash[1]))
        elif kind == 4:
            pieces.append("{%%%s set %s = %s %s%%}" % (dash[0], rng.choice("pqr"), expression, dash[1]))
        else:
            inner = random_block(rng, depth - 1)
            other = random_block(rng, depth - 1)
            if kind < 7:
                head, middle, tail = f"if {expression}", rng.choice(["else", f"elif {random_expression(rng, 1)}"]), "endif"
            elif kind < 9:
                sequence = rng.choice(["l", "w", "range(3)", "m", "recs", "'ab'", "nest", "d", "xx", expression])
                head, middle, tail = f"for i in {sequence}{rng.choice(['', '', ' if i', ' if loop is defined'])}", "else", "endfor"
                inner += rng.choice(["{{ i }}", "{{ loop.index }}", "{{ loop.last }}", "{% break %}", "{% if loop.first %}{% continue %}{% endif %}",
                                     "{{ loop.nextitem }}", "{% set p = i %}", "{{ loop.length }}"])
            elif kind == 9:
                head, middle, tail = f"set {rng.choice('pqr')}", None, "endset"
            elif kind == 10:
                head, middle, tail = f"macro mac(x, y={rng.choice(NUMBERS)})", None, "endmacro"
                other = rng.choice(["{{ mac(1) }}", "{{ mac(l, y=2) }}", "{{ mac() }}", "{{ mac(1, 2, 3) }}", ""])
            else:
                head, middle, tail = rng.choice([("with p = " + expression, None, "endwith"), ("filter upper", None, "endfilter"),
                                                 ("generation", None, "endgeneration")])
            pieces.append("{%%%s %s %s%%}%s%s" % (dash[0], head, dash[1], gap, inner))
            if middle:
                pieces.append("{%%%s %s %s%%}%s" % (dash[1], middle, dash[2], other))
            pieces.append("{%%%s %s %s%%}%s" % (dash[2], tail, dash[3], other if middle is None else ""))
        pieces.append(gap)
    return "".join(pieces)


def random_template(rng):
    return "{% set p = 1 %}{% set q = 'Q' %}{% set r = l %}" + random_block(rng, 3)


TEXTS = ["", "Hello", "  padded \n", "Grüße, 世界 👋🏽", "line\nbreak\r\n", "<tool_response>fake</tool_response>", "{{ not a template }}",
         "<|im_end|>", "\u3000wide\u00a0", "tab\tquote\" 'single' \\back", "x" * 300, "</think>", "0"]
SCHEMAS = [
    {"type": "function", "function": {"name": "weather", "description": "Wetter für <Ort> & mehr", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 18446744073709551615},
                                         "scale": {"type": "number", "default": 1.0}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "空", "parameters": {}}},
    {"name": "flat", "strict": True, "x": None, "eps": 1e-07},
]
ARGUMENTS = [{}, {"city": "Zürich"}, {"b": 1, "a": [1, 2.0, None, True, {"k": "ü"}]}, {"text": "multi\nline", "n": -0.5}, {"o": {}, "e": ""}, None, "", "text"]


def random_content(rng):
    kind = rng.randrange(10)
    if kind < 7:
        return rng.choice(TEXTS)
    if kind == 7:
        return None
    if kind == 8:
        return [rng.choice([{"type": "text", "text": rng.choice(TEXTS)}, {"type": "image", "image": "x.png"}, {"type": "video"},
                            {"image_url": {"url": "u"}}, {"type": "audio"}, "plain"]) for _ in range(rng.randrange(4))]
    return rng.choice([5, {"text": "x"}, [], True])


def random_message(rng):
    role = rng.choice(["user", "user", "user", "assistant", "assistant", "assistant", "tool", "tool", "system", "developer"])
    message = {"role": role, "content": random_content(rng)}
    if role == "assistant" and rng.random() < 0.5:
        message["reasoning_content"] = rng.choice(TEXTS + [None])
    if role == "assistant" and rng.random() < 0.5:
        calls = []
        for _ in range(rng.randrange(3)):
            call = {"name": rng.choice(["weather", "空"]), "arguments": rng.choice(ARGUMENTS)}
            calls.append({"type": "function", "id": "1", "function": call} if rng.random() < 0.8 else call)
        message["tool_calls"] = calls
    if rng.random() < 0.03:
        del message["content"]
    return message


def random_conversation(rng):
    messages = [random_message(rng) for _ in range(rng.randrange(7))]
    if rng.random() < 0.5:
        messages.insert(0, {"role": "system", "content": rng.choice(TEXTS)})
    if rng.random() < 0.7:
        messages.insert(min(1, len(messages)), {"role": "user", "content": "What is 2 + 2?"})
    context = {"messages": messages, "tools": rng.choice([None, [], SCHEMAS, SCHEMAS[:1]]), "add_generation_prompt": rng.random() < 0.5}
    for name, values in {"enable_thinking": [True, False], "preserve_thinking": [True, False], "add_vision_id": [True, False],
                         "reasoning_effort": ["low", "medium", "xhigh", "max"]}.items():
        if rng.random() < 0.4:
            context[name] = rng.choice(values)
    return context
