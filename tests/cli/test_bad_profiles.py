"""A malformed profile is refused with one message that names file, line and key; never a traceback."""

import io
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import process

from kvplan.cli.app import main
from kvplan.errors import ProfileError
from kvplan.profile.reading import load_profile, parse_profile

GOOD = """\
schema = 1
name = "bad on purpose"

[gpu]
memory_tokens = 40_000
block_tokens = 16

[timing]
d0 = "14.5 ms"
d1 = "0.25 us"

[[classes]]
name = "chat"
input = 1155
decode = 211
rate = 1.5

[[classes]]
name = "code"
input = 2000
decode = { 50 = 0.2, 200 = 0.8 }
rate = 0.5

[plan]
horizon = "1 h"

[gate]
require = ["load.headroom >= 0.2"]
"""


@dataclass(frozen=True)
class Bad:
    """What stands in the file, and where and how it is refused."""

    data: bytes
    line: int | None
    key: str | None
    says: str


def edit(old: str, new: str, line: int, key: str | None, says: str) -> Bad:
    """The good profile with one passage replaced."""
    assert GOOD.count(old) == 1
    return Bad(GOOD.replace(old, new).encode(), line, key, says)


SHARES = GOOD.replace("rate = 1.5", "share = 0.4").replace("rate = 0.5", "share = 0.6")
WORKLOAD = "\n[workload]\nrate = 10\n"


def day(*parts: str, period: str = '"24 h"') -> str:
    """A schedule before the plan, its period on line 25; part i, counted from 0, is on line 27 + i."""
    listed = "".join(f"  {{ {part} }},\n" for part in parts)
    return f"[workload]\nperiod = {period}\nschedule = [\n{listed}]\n[plan]"


def measured(value: str, key: str, says: str) -> Bad:
    """A measured range of the timing."""
    return edit('d1 = "0.25 us"', f"measured = {value}", 10, f"timing.measured{key}", says)


def origin(value: str, key: str, says: str) -> Bad:
    """How the timing is known."""
    return edit("[gate]", f"[provenance]\ntiming = {value}\n[gate]", 28, f"provenance.timing{key}", says)


BAD = {
    # Syntax
    "empty": Bad(b"", 1, None, "empty"),
    "only blanks": Bad(b" \n\n", 1, None, "empty"),
    "not toml": Bad(b"schema: 1\n", 1, None, "not valid TOML"),
    "json": Bad(b'{"schema": 1}', 1, None, "not valid TOML"),
    "no value": edit("block_tokens = 16", "block_tokens =", 6, None, "not valid TOML: Invalid value (column 15)"),
    "unclosed string": edit('"0.25 us"', '"0.25 us', 10, None, "not valid TOML"),
    "unclosed list": edit('0.2"]', '0.2"', 28, None, "not valid TOML"),
    "unclosed header": edit("[plan]", "[plan", 24, None, "not valid TOML"),
    "lone carriage return": edit("[plan]\n", "[plan]\r", 24, None, "not valid TOML"),
    "key twice": edit("rate = 1.5", "rate = 1.5\nrate = 2", 17, None, "Cannot overwrite a value"),
    "table twice": edit("[plan]", "[gpu]", 24, None, "Cannot declare ('gpu',) twice"),
    "length twice": edit("50 = 0.2,", "200 = 0.2,", 21, None, "not valid TOML"),
    "null byte": edit('"chat"', '"ch\0at"', 13, None, "not valid TOML"),
    "null byte outside a string": edit("[plan]", "\0[plan]", 24, None, "not valid TOML"),
    "not utf-8": Bad(GOOD.encode().replace(b"chat", b"ch\xe4t"), 13, None, "must be UTF-8, not byte 0xe4"),
    "utf-16": Bad(GOOD.encode("utf-16"), 1, None, "must be UTF-8"),
    "binary": Bad(bytes(range(256)) * 4, 2, None, "must be UTF-8, not byte 0x80 at offset 128"),
    "no such date": edit('"1 h"', "2024-13-45", 25, None, "not valid TOML"),
    "deep lists": edit('"1 h"', "[" * 100_000, 25, None, "nested too deeply"),
    "deep tables": edit('"1 h"', "{a=" * 100_000, 25, None, "nested too deeply"),
    "deep key": edit("horizon", ".".join("a" * 20_000), 25, None, "nested too deeply"),
    "5,000 digits": edit("40_000", "9" * 5_000, 5, None, "too many digits"),
    "5,000 digits as a float": edit("40_000", "9" * 5_000 + ".0", 5, "gpu.memory_tokens", "not inf"),
    "50,000 hexadecimal digits": edit("40_000", "0x" + "f" * 50_000, 5, "gpu.memory_tokens", "too many digits"),
    # Keys
    "comments only": Bad(b"# nothing\n", 1, "schema", "required"),
    "no schema": edit("schema = 1\n", "", 1, "schema", "required"),
    "no name": edit('name = "bad on purpose"\n', "", 1, "name", "required"),
    "no gpu": edit("[gpu]\nmemory_tokens = 40_000\nblock_tokens = 16\n", "", 1, "gpu", "required"),
    "no memory": edit("memory_tokens = 40_000\n", "", 4, "gpu", "needs memory_tokens, or memory with"),
    "no d0": edit('d0 = "14.5 ms"\n', "", 8, "timing.d0", "required"),
    "no input": edit("input = 2000\n", "", 18, "classes[1].input", "required"),
    "no decode": edit("decode = 211\n", "", 12, "classes[0].decode", "required"),
    "no rate": edit("rate = 0.5\n", "", 18, "classes[1].rate", "required"),
    "no classes": Bad(GOOD.partition("[[classes]]")[0].encode(), 1, "classes", "required"),
    "empty list of classes": Bad(
        b"classes = []\n" + GOOD.partition("[[classes]]")[0].encode(), 1, "classes", "required: a class of requests"
    ),
    "one class in single brackets": Bad(
        GOOD.partition("[[classes]]")[0].encode() + b'[classes]\nname = "a"\n', 12, "classes", "not a table"
    ),
    "misspelt key": edit("decode = 211", "decodes = 211", 15, "classes[0].decodes", "did you mean decode?"),
    "misspelt table": edit("[timing]", "[timming]", 8, "timming", "did you mean timing?"),
    "misspelt memory": edit("memory_tokens", "memory_token", 5, "gpu.memory_token", "did you mean memory_tokens?"),
    "unknown key": edit("[plan]", "[plan]\ncolour = 1", 25, "plan.colour", "known here: delta, horizon, segments"),
    "unknown table": edit("[plan]", "[[xyz]]\n[plan]", 24, "xyz", "known here: schema, name, gpu"),
    "key in the wrong table": edit(
        "[timing]", "[timing]\nprefill = 1", 9, "timing.prefill", "known here: d0, d1, d2, d3"
    ),
    "field name of the schema": edit("schema = 1", "version = 1", 1, "version", "unknown key"),
    "quoted key": edit("[plan]", '[plan]\n"a\\u001b b" = 1', 25, "plan.'a\\x1b b'", "unknown key"),
    "dotted key": edit("[plan]", "[plan]\ngpu.size = 1", 25, "plan.gpu", "unknown key"),
    # Types
    "schema 2": edit("schema = 1", "schema = 2", 1, "schema", "must be 1, the only schema there is, not 2"),
    "schema as a float": edit("schema = 1", "schema = 1.0", 1, "schema", "must be 1"),
    "schema as a boolean": edit("schema = 1", "schema = true", 1, "schema", "not true"),
    "schema as a string": edit("schema = 1", 'schema = "1"', 1, "schema", "not '1'"),
    "number as a name": edit('"bad on purpose"', "7", 2, "name", "must be a string, not 7"),
    "tokens as a float": edit("40_000", "40000.0", 5, "gpu.memory_tokens", "a whole number, not 40000.0"),
    "tokens as a string": edit("40_000", '"40000"', 5, "gpu.memory_tokens", "a whole number, not '40000'"),
    "tokens as a boolean": edit("1155", "true", 14, "classes[0].input", "a whole number, not true"),
    "rate as a string": edit("rate = 1.5", 'rate = "1.5"', 16, "classes[0].rate", "a number, not '1.5'"),
    "rate as a boolean": edit("rate = 1.5", "rate = false", 16, "classes[0].rate", "a number, not false"),
    "rate as a date": edit("rate = 1.5", "rate = 2024-01-01", 16, "classes[0].rate", "must be a number"),
    "decode as a float": edit("= 211", "= 211.5", 15, "classes[0].decode", "not 211.5"),
    "decode as a list": edit("= 211", "= [211]", 15, "classes[0].decode", "not a list"),
    "decode as a boolean": edit("= 211", "= true", 15, "classes[0].decode", "not true"),
    "time as a boolean": edit('"14.5 ms"', "true", 9, "timing.d0", "a number of seconds or a string such as"),
    "time as a list": edit('"14.5 ms"', "[\n1,\n]", 9, "timing.d0", "not a list"),
    "number as a table": edit("[plan]", "[workload]\nrate = {}\n[plan]", 25, "workload.rate", "not a table"),
    "table as a number": Bad(b"gpu = 5\n" + SHARES.encode().replace(b"[gpu]\nmemory", b"[plan.x]\nmemory"), 1, "gpu",
                             "must be a table, not 5"),
    "gate as a string": edit("require = [", 'require = "x" # [', 28, "gate.require", "must be a list, not 'x'"),
    "negative overhead": edit(
        'd1 = "0.25 us"', "request_overhead = -1", 10, "timing.request_overhead", "must be at least 0, not -1"
    ),
    "measured as a number": measured("3", "", "must be a table, not 3"),
    "unknown range": measured("{ kv_token = [0, 9] }", ".kv_token", "did you mean kv_tokens?"),
    "range of one": measured("{ sequences = [9] }", ".sequences", "two numbers, least and most, such as [0, 8192]"),
    "range backwards": measured("{ kv_tokens = [9, 1] }", ".kv_tokens", "least first and then the most, not [9, 1]"),
    "range without end": measured("{ kv_tokens = [0, inf] }", ".kv_tokens", "from 0 to 1,000,000,000,000"),
    "range of text": measured('{ prefill_tokens = ["0", 1] }', ".prefill_tokens", "not ['0', 1]"),
    "range of truth": measured("{ prefill_tokens = [false, true] }", ".prefill_tokens", "not [false, true]"),
    "band from nothing": measured("{ band = [0, 1.2] }", ".band", "from 0.001 to 1,000, such as [0.9, 1.3]"),
    "unknown basis": origin('"guessed"', "", "must be one of measured, stated, estimated, assumed, or a table"),
    "basis as a number": origin("1", "", "must be one of measured, stated, estimated, assumed, or a table"),
    "unknown basis in a table": origin('{ basis = "guessed" }', ".basis", "estimated, assumed, not 'guessed'"),
    "no basis": origin('{ source = "a log" }', "", "needs a basis: one of measured, stated, estimated, assumed"),
    "unknown key of an origin": origin('{ basis = "stated", form = "x" }', ".form", "known here: basis, source, date"),
    "source as a number": origin('{ basis = "stated", source = 1 }', ".source", "must be a string, not 1"),
    "source of two lines": origin('{ basis = "stated", source = "a\\nb" }', ".source", "printable characters"),
    "date as text": origin('{ basis = "stated", date = "2026-11-22" }', ".date", "without quotes, not '2026-11-22'"),
    "date with a time": origin('{ basis = "stated", date = 2026-11-22T08:00:00Z }', ".date", "2026-11-22 08:00:00"),
    "origin of an unknown part": edit(
        "[gate]", '[provenance]\nhost = "stated"\n[gate]', 28, "provenance.host", "known here: gpu, timing, workload"
    ),
    "requirement as a number": edit(
        "require = [", 'require = [\n  "a", # [\n  5,\n  ', 30, "gate.require[1]", "must be a string, not 5"
    ),
    "no such prefill": edit(
        "[timing]", 'prefill = "chunked"\n[timing]', 8, "gpu.prefill", "'fused', 'inline' or 'disaggregated', not"
    ),
    "segments as a word": edit("[plan]", '[plan]\nsegments = "all"', 25, "plan.segments", 'must be "auto" or'),
    "segments as a boolean": edit("[plan]", "[plan]\nsegments = true", 25, "plan.segments", "not true"),
    # Units
    "no unit": edit('"14.5 ms"', '"14.5"', 9, "timing.d0", "one of us, ms, s, min, h"),
    "no such unit": edit('"14.5 ms"', '"14.5 mins"', 9, "timing.d0", "'14.5 mins' is not a time"),
    "unit of memory for a time": edit('"1 h"', '"1 GiB"', 25, "plan.horizon", "not a time"),
    "too large a time": edit('"1 h"', '"1e999 h"', 25, "plan.horizon", "too large"),
    "no such unit of memory": edit(
        "memory_tokens = 40_000", 'memory = "5 gigs"\nkv_bytes_per_token = 8', 5, "gpu.memory", "KiB, MiB, GiB, TiB"
    ),
    "memory as a number": edit(
        "memory_tokens = 40_000", "memory = 5\nkv_bytes_per_token = 8", 5, "gpu.memory", 'such as "5.05 GiB", not 5'
    ),
    "negative memory": edit(
        "memory_tokens = 40_000", 'memory = "-5 GiB"\nkv_bytes_per_token = 8', 5, "gpu.memory", "not '-5 GiB'"
    ),
    "more memory than there is": edit(
        "memory_tokens = 40_000", 'memory = "1e999 TiB"\nkv_bytes_per_token = 8', 5, "gpu.memory", "at most 1e+18"
    ),
    "memory for less than a token": edit(
        "memory_tokens = 40_000", 'memory = "1 kB"\nkv_bytes_per_token = 131_072', 5, "gpu.memory", "not 0"
    ),
    # Ranges
    "nan": edit("rate = 1.5", "rate = nan", 16, "classes[0].rate", "must be a finite number, not nan"),
    "infinity": edit('"14.5 ms"', "inf", 9, "timing.d0", "must be a finite number, not inf"),
    "infinite by its exponent": edit("rate = 1.5", "rate = 1e999", 16, "classes[0].rate", "finite number, not inf"),
    "nan as a weight": edit("50 = 0.2", "50 = nan", 21, "classes[1].decode.50", "the weight must be a number from"),
    "rate 0": edit("rate = 1.5", "rate = 0", 16, "classes[0].rate", "must be at least 1e-300, not 0"),
    "negative rate": edit("rate = 1.5", "rate = -1", 16, "classes[0].rate", "must be at least 1e-300, not -1"),
    "denormal rate": edit("rate = 1.5", "rate = 5e-324", 16, "classes[0].rate", "at least 1e-300, not 5e-324"),
    "d0 = 0": edit('"14.5 ms"', "0.0", 9, "timing.d0", "must be at least 1e-12, not 0.0"),
    "negative d0": edit('"14.5 ms"', '"-14.5 ms"', 9, "timing.d0", "not '-14.5 ms'"),
    "negative d1": edit('"0.25 us"', '"-1 us"', 10, "timing.d1", "must be at least 0, not '-1 us'"),
    "negative input": edit("1155", "-1", 14, "classes[0].input", "must be at least 0, not -1"),
    "input beyond the bound": edit("1155", "1_000_000_001", 14, "classes[0].input", "at most 1,000,000,000"),
    "memory beyond the bound": edit("40_000", "1_000_000_000_001", 5, "gpu.memory_tokens", "1,000,000,000,000"),
    "no memory at all": edit("40_000", "0", 5, "gpu.memory_tokens", "must be at least 1, not 0"),
    "decode 0": edit("= 211", "= 0", 15, "classes[0].decode", "from 1 to 1,000,000"),
    "decode beyond the bound": edit("= 211", "= 1_000_001", 15, "classes[0].decode", "from 1 to 1,000,000"),
    "length 0": edit("50 = 0.2", "0 = 0.2", 21, "classes[1].decode.0", "from 1 to 1,000,000, not '0'"),
    "length spelt with a zero": edit("50 = 0.2", "050 = 0.2", 21, "classes[1].decode.050", "not '050'"),
    "length as a word": edit("50 = 0.2", "long = 0.2", 21, "classes[1].decode.long", "not 'long'"),
    "length beyond the bound": edit("50 = 0.2", "1000001 = 1", 21, "classes[1].decode.1000001", "to 1,000,000"),
    "length as a float": edit("50 = 0.2", "1.5 = 0.2", 21, "classes[1].decode.1", "the weight must be a number"),
    "weight 0": edit("50 = 0.2", "50 = 0", 21, "classes[1].decode.50", "not 0"),
    "negative weight": edit("200 = 0.8", "200 = -0.8", 21, "classes[1].decode.200", "not -0.8"),
    "weight as a string": edit("200 = 0.8", '200 = "x"', 21, "classes[1].decode.200", "not 'x'"),
    "enormous weight": edit("200 = 0.8", "200 = 1e308", 21, "classes[1].decode.200", "not 1e+308"),
    "no lengths": edit("{ 50 = 0.2, 200 = 0.8 }", "{}", 21, "classes[1].decode", "at least one length = weight"),
    "weight in a table over lines": edit(
        "{ 50 = 0.2, 200 = 0.8 }", "{\n 50 = 1,\n 60 = 1, # }\n\n 70 = 0,\n}", 25, "classes[1].decode.70", "not 0"
    ),
    "weight in a table of its own": edit(
        "decode = { 50 = 0.2, 200 = 0.8 }\nrate = 0.5\n",
        "rate = 0.5\n[classes.decode]\n50 = 1\n200 = -1\n", 24, "classes[1].decode.200", "not -1"
    ),
    "delta 0": edit("[plan]", "[plan]\ndelta = 0", 25, "plan.delta", "must be greater than 0, not 0"),
    "delta over 1": edit("[plan]", "[plan]\ndelta = 1.5", 25, "plan.delta", "must be at most 1, not 1.5"),
    "horizon 0": edit('"1 h"', '"0 s"', 25, "plan.horizon", "not '0 s'"),
    "segments 0": edit("[plan]", "[plan]\nsegments = 0", 25, "plan.segments", "a whole number from 1, not 0"),
    "blocks of 0": edit("= 16", "= 0", 6, "gpu.block_tokens", "must be at least 1, not 0"),
    "no sequences": edit("[timing]", "max_num_seqs = 0\n[timing]", 8, "gpu.max_num_seqs", "at least 1, not 0"),
    "no batch": edit(
        "[timing]", "max_num_batched_tokens = 0\n[timing]", 8, "gpu.max_num_batched_tokens", "at least 1, not 0"
    ),
    "empty name": edit('"chat"', '""', 13, "classes[0].name", "printable characters, not ''"),
    "blank name": edit('"bad on purpose"', '"  "', 2, "name", "printable"),
    "escape sequence in a name": edit('"chat"', '"\\u001b[31m"', 13, "classes[0].name", "not '\\x1b[31m'"),
    "line end in a name": edit('"chat"', '"a\\nb"', 13, "classes[0].name", "printable"),
    "text direction in a name": edit('"chat"', '"a\\u202eb"', 13, "classes[0].name", "printable"),
    "long name": edit('"chat"', '"' + "x" * 201 + '"', 13, "classes[0].name", "1 to 200 printable"),
    # Relations
    "memory twice": edit("block_tokens", 'memory = "1 GiB"\nblock_tokens', 6, "gpu.memory", "beside memory_tokens"),
    "bytes beside tokens": edit(
        "block_tokens", "kv_bytes_per_token = 8\nblock_tokens", 6, "gpu.kv_bytes_per_token", "beside memory_tokens"
    ),
    "memory without bytes per token": edit(
        "memory_tokens = 40_000", 'memory = "5 GiB"', 4, "gpu", "memory with kv_bytes_per_token"
    ),
    "nothing but lines": Bad(GOOD.encode() + b"\n" * 2_000_000, 1_000_001, None, "more than 1,000,000 lines"),
    "blocks larger than memory": edit("= 16", "= 50_000", 6, "gpu.block_tokens", "must be at most the memory, 40,000"),
    "share without workload": edit("rate = 0.5", "share = 1", 22, "classes[1].share", "[workload] rate"),
    "rate and share without workload": edit(
        "rate = 0.5", "rate = 0.5\nshare = 1", 23, "classes[1].share", "[workload] rate"
    ),
    "rates beside workload": Bad((GOOD + WORKLOAD).encode(), 16, "classes[0].rate", "not allowed beside"),
    "rate and share": Bad(
        (SHARES.replace("share = 0.6", "share = 0.6\nrate = 1") + WORKLOAD).encode(),
        23, "classes[1].rate", "not allowed beside [workload] rate",
    ),
    "no share": Bad(
        (SHARES.replace("share = 0.6\n", "") + WORKLOAD).encode(), 18, "classes[1].share", "required"
    ),
    "shares below 1": Bad(
        (SHARES.replace("0.6", "0.59") + WORKLOAD).encode(), 22, "classes[1].share", "must sum to 1, not 0.99"
    ),
    "shares above 1 by little": Bad(
        (SHARES.replace("0.6", "0.60000001") + WORKLOAD).encode(), 22, "classes[1].share", "not 1.00000001"
    ),
    "share above 1": Bad(
        (SHARES.replace("0.6", "1.6") + WORKLOAD).encode(), 22, "classes[1].share", "at most 1, not 1.6"
    ),
    "class twice": edit('"code"', '"chat"', 19, "classes[1].name", "must be unique, and 'chat' is taken"),
    "no prompt inline": Bad(
        GOOD.replace("= 16", '= 16\nprefill = "inline"').replace("1155", "0").encode(),
        15, "classes[0].input", "must be at least 1 where prefill",
    ),
    "class larger than memory": edit("2000", "39_900", 18, "classes[1]", "class 'code' does not fit"),
    "class larger than memory in blocks": Bad(
        GOOD.replace("40_000", "1370").replace("2000", "100").encode(),
        12, "classes[0]", "holds 1,376 KV tokens (input 1,155 + decode 211, in blocks of 16), and memory holds 1,360",
    ),
    "more segments than lengths": edit(
        "[plan]", "[plan]\nsegments = 4", 25, "plan.segments", "at most the 3 distinct decode lengths, not 4"
    ),
    # Several at once
    "two wrong values": Bad(
        GOOD.replace('"0.25 us"', "-1").replace("= 211", "= 0").encode(), 10, "timing.d1", "at least 0"
    ),
    "tables in another order": Bad(
        b'gate.require = [1]\nplan = { segments = 0 }\n[[classes]]\nrate = -1\n[timing]\nd0 = 0\n',
        1, "gate.require[0]", "must be a string",
    ),
    "two on one line": Bad(b"plan = { segments = 0, delta = 0 }\n", 1, "plan.segments", "from 1"),
    "a typo before what it leaves out": edit("input = 2000", "inputs = 2000", 20, "classes[1].inputs", "mean input?"),
    "windows line ends": Bad(
        GOOD.replace("= 211", "= 0").replace("\n", "\r\n").encode(), 15, "classes[0].decode", "not 0"
    ),
    "byte order mark": Bad(b"\xef\xbb\xbf" + GOOD.replace("= 211", "= 0").encode(), 15, "classes[0].decode", "not 0"),
}  # fmt: skip

NIGHT = "at = 0, factor = 0.5"
BAD |= {
    # Rates that vary
    "no period": edit(
        "[plan]", "[[workload.schedule]]\nat = 0\nfactor = 2\n[plan]", 24, "workload.period", "required"
    ),
    "gaps that vary too much": edit(
        "[plan]", "[workload]\ncv = 200\n[plan]", 25, "workload.cv", "must be at most 100, not 200"
    ),
    "a trace without a name": edit(
        "[plan]", '[workload]\ntrace = " "\n[plan]', 25, "workload.trace", "must be the path of a file"
    ),
    "period without schedule": edit(
        "[plan]",
        '[workload]\nperiod = "24 h"\n[plan]',
        25,
        "workload.period",
        "goes with a [[workload.schedule]]",
    ),
    "workload of nothing": edit("[plan]", "[workload]\n[plan]", 24, "workload.rate", "required"),
    "schedule of nothing": edit("[plan]", day(), 26, "workload.schedule", "must have at least 1, not 0"),
    "schedule that is a table": edit(
        "[plan]",
        "[workload]\nperiod = 9\n[workload.schedule]\nat = 0\nfactor = 2\n[plan]",
        26,
        "workload.schedule",
        "must be a list, not a table",
    ),
    "1,001 steps": edit(
        "[plan]",
        day(*(f"at = {i}, factor = 1" for i in range(1001))),
        26,
        "workload.schedule",
        "must have at most 1,000, not more",
    ),
    "unknown key of a step": edit(
        "[plan]", day("at = 0, factr = 2"), 27, "workload.schedule[0].factr", "did you mean factor?"
    ),
    "step without a time": edit(
        "[plan]", day("factor = 2"), 27, "workload.schedule[0].at", "required in a step"
    ),
    "step without a factor": edit(
        "[plan]", day(NIGHT, "at = 9"), 28, "workload.schedule[1]", "needs a factor, or factors of classes"
    ),
    "steps out of order": edit(
        "[plan]",
        day(NIGHT, 'at = "8 h", factor = 2', 'at = "7 h", factor = 1'),
        29,
        "workload.schedule[2].at",
        "must be later than the step before, after 8 h, not 7 h",
    ),
    "two steps at once": edit(
        "[plan]", day(NIGHT, NIGHT), 28, "workload.schedule[1].at", "must be later than the step before"
    ),
    "step after the period": edit(
        "[plan]",
        day('at = "24 h", factor = 2'),
        27,
        "workload.schedule[0].at",
        "must be before the period ends, less than 24 h, not 24 h",
    ),
    "negative time": edit("[plan]", day("at = -1, factor = 2"), 27, "workload.schedule[0].at", "at least 0"),
    "time of day": edit(
        "[plan]", day('at = "8:00", factor = 2'), 27, "workload.schedule[0].at", "is not a time"
    ),
    "negative factor": edit(
        "[plan]",
        day("at = 0, factor = -1"),
        27,
        "workload.schedule[0].factor",
        "must be 0, or a number from 1e-06",
    ),
    "factor that is true": edit(
        "[plan]", day("at = 0, factor = true"), 27, "workload.schedule[0].factor", "not true"
    ),
    "factor of no class": edit(
        "[plan]",
        day("at = 0, factors = { chta = 2 }"),
        27,
        "workload.schedule[0].factors.chta",
        "no class has this name; did you mean chat?",
    ),
    "huge factor of a class": edit(
        "[plan]",
        day("at = 0, factors = { chat = 1e7 }"),
        27,
        "workload.schedule[0].factors.chat",
        "not 10000000.0",
    ),
    "no factors": edit(
        "[plan]", day("at = 0, factors = {}"), 27, "workload.schedule[0].factors", "not an empty table"
    ),
    "class that never arrives": edit(
        "[plan]",
        day("at = 0, factors = { code = 0 }", "at = 9, factor = 0"),
        26,
        "workload.schedule",
        "class 'code' never arrives",
    ),
    "amplitude over 1": edit(
        "[plan]", day("amplitude = 1.5"), 27, "workload.schedule[0].amplitude", "must be at most 1, not 1.5"
    ),
    "negative amplitude": edit(
        "[plan]", day("amplitude = -0.5"), 27, "workload.schedule[0].amplitude", "must be at least 0"
    ),
    "step and sinusoid in one": edit(
        "[plan]",
        day("amplitude = 0.5, factor = 2"),
        27,
        "workload.schedule[0].factor",
        "a step or a sinusoid",
    ),
    "steps and a sinusoid": edit(
        "[plan]", day(NIGHT, "amplitude = 0.5"), 28, "workload.schedule[1].amplitude", "not one of 2 tables"
    ),
    "peak of no sinusoid": edit(
        "[plan]",
        day("at = 0, factor = 2, peak = 9"),
        27,
        "workload.schedule[0].peak",
        "goes with the amplitude",
    ),
    "peak after the period": edit(
        "[plan]",
        day("amplitude = 0.5, peak = 9", period="8"),
        27,
        "workload.schedule[0].peak",
        "less than 8 s",
    ),
}


def test_the_profile_that_the_cases_spoil_is_good() -> None:
    assert parse_profile(GOOD.encode(), "good.toml").name == "bad on purpose"
    assert parse_profile((SHARES + WORKLOAD).encode(), "good.toml").model.total_rate_rps == 10.0
    varying = GOOD.replace("[plan]", day(NIGHT, "at = 9, factor = 2, factors = { chat = 1 }"))
    assert parse_profile(varying.encode(), "good.toml").model.total_rate_rps == 2.0


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_names_line_and_key_and_what_is_allowed(bad: Bad) -> None:
    with pytest.raises(ProfileError) as refusal:
        parse_profile(bad.data, "bad.toml")
    error = refusal.value
    assert (error.line, error.key) == (bad.line, bad.key), str(error)
    assert bad.says in error.message
    assert len(str(error)) < 400
    assert str(error).isprintable()


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_command_exits_with_2_and_one_message(
    bad: Bad, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(bad.data)
    assert main(["analyze", str(path)]) == 2
    out, err = capsys.readouterr()
    key = f"{bad.key}: " if bad.key else ""
    assert out == ""
    assert err.startswith(f"error: {path}:{bad.line}: {key}")
    assert bad.says in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["not utf-8", "misspelt key", "deep lists", "class larger than memory"])
def test_installed_command_exits_with_2_and_one_message(name: str, tmp_path: Path) -> None:
    bad = BAD[name]
    path = tmp_path / "bad.toml"
    path.write_bytes(bad.data)
    run = process("analyze", path, timeout=60)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith(f"error: {path}:{bad.line}: ")
    assert bad.says in run.stderr
    assert "Traceback" not in run.stderr


def refused(reference: str, stdin: bytes = b"") -> ProfileError:
    with pytest.raises(ProfileError) as refusal:
        load_profile(reference, stdin=io.BytesIO(stdin))
    return refusal.value


def test_a_missing_file_is_refused() -> None:
    message = str(refused("no/such/file.toml"))
    assert message.startswith("no/such/file.toml: neither a file nor a shipped profile; shipped profiles: ")


def test_a_misspelt_shipped_profile_is_refused_with_the_nearest() -> None:
    message = str(refused("llama-3.1-8b-rtx409"))
    assert message.endswith("did you mean llama-3.1-8b-rtx4090?")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert str(refused(str(tmp_path))) == f"{tmp_path}: cannot be read: Is a directory"


def test_a_dangling_link_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to("nowhere")
    assert str(refused(str(link))) == f"{link}: cannot be read: No such file or directory"


def test_a_file_as_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "neither a file nor a shipped profile" in str(refused(str(tmp_path / "file" / "profile.toml")))


@pytest.mark.parametrize("reference", ["", "a\0b", "\x1b[31m.toml", "x" * 10_000, "\udcff.toml"])
def test_a_name_that_no_file_can_have_is_refused(reference: str) -> None:
    message = str(refused(reference))
    assert "neither a file nor a shipped profile" in message
    assert message.isprintable()
    assert len(message) < 400


def test_50_mb_of_junk_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "junk.toml"
    path.write_bytes(b"x" * 50_000_000)
    assert str(refused(str(path))) == f"{path}: larger than 10 MB, the limit for a profile"


def test_a_file_without_end_is_refused_by_its_size() -> None:
    assert "larger than 10 MB" in str(refused("/dev/zero"))


def test_standard_input_is_refused_in_the_same_words() -> None:
    assert str(refused("-", BAD["misspelt key"].data)).startswith(
        "<stdin>:15: classes[0].decodes: unknown key"
    )
    assert str(refused("-", b"")) == "<stdin>:1: empty; a profile starts with schema = 1"
    assert "larger than 10 MB" in str(refused("-", b"#" * 10_000_001))


def test_a_million_unknown_keys_are_refused_at_the_first() -> None:
    data = GOOD.replace("[gpu]\n", "[gpu]\n" + "".join(f"k{i} = 1\n" for i in range(100_000))).encode()
    with pytest.raises(ProfileError) as refusal:
        parse_profile(data, "bad.toml")
    assert (refusal.value.line, refusal.value.key) == (5, "gpu.k0")
