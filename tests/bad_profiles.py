"""Profiles that are refused: a good one with one passage spoilt, and how the refusal names it."""

from dataclasses import dataclass

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


def scheduled(table: str, line: int, key: str, says: str) -> Bad:
    """A profile whose rates vary."""
    return edit("[plan]", table, line, f"workload.schedule{key}", says)


def lognormal(parameters: str, says: str, inside: str = "") -> Bad:
    """The good profile with a log-normal input."""
    return edit("1155", f"{{ lognormal = {parameters} }}", 14, f"classes[0].input.lognormal{inside}", says)


def measured(value: str, key: str, says: str) -> Bad:
    """A measured range of the timing."""
    return edit('d1 = "0.25 us"', f"measured = {value}", 10, f"timing.measured{key}", says)


def origin(value: str, key: str, says: str) -> Bad:
    """How the timing is known."""
    return edit("[gate]", f"[provenance]\ntiming = {value}\n[gate]", 28, f"provenance.timing{key}", says)


BAD = {
    # Syntax
    "empty": Bad(b"", 1, None, "empty"),
    "not toml": Bad(b"schema: 1\n", 1, None, "not valid TOML"),
    "no value": edit("block_tokens = 16", "block_tokens =", 6, None, "not valid TOML: Invalid value (column 15)"),
    "unclosed string": edit('"0.25 us"', '"0.25 us', 10, None, "not valid TOML"),
    "key twice": edit("rate = 1.5", "rate = 1.5\nrate = 2", 17, None, "Cannot overwrite a value"),
    "null byte": edit('"chat"', '"ch\0at"', 13, None, "not valid TOML"),
    "not utf-8": Bad(GOOD.encode().replace(b"chat", b"ch\xe4t"), 13, None, "must be UTF-8, not byte 0xe4"),
    "binary": Bad(bytes(range(256)) * 4, 2, None, "must be UTF-8, not byte 0x80 at offset 128"),
    "deep lists": edit('"1 h"', "[" * 100_000, 25, None, "nested too deeply"),
    "deep key": edit("horizon", ".".join("a" * 20_000), 25, None, "nested too deeply"),
    "5,000 digits": edit("40_000", "9" * 5_000, 5, None, "too many digits"),
    "50,000 hexadecimal digits": edit("40_000", "0x" + "f" * 50_000, 5, "gpu.memory_tokens", "too many digits"),
    # Keys
    "comments only": Bad(b"# nothing\n", 1, "schema", "required"),
    "no schema": edit("schema = 1\n", "", 1, "schema", "required"),
    "no name": edit('name = "bad on purpose"\n', "", 1, "name", "required"),
    "neither gpu, timing nor classes": Bad(
        b'schema = 1\nname = "a"\nclasses = []\n', 1, None, "needs gpu or timing or classes or sessions"
    ),
    "no memory": edit("memory_tokens = 40_000\n", "", 4, "gpu", "or memory_tokens, or memory and kv_b"),
    "no d0": edit('d0 = "14.5 ms"\n', "", 8, "timing.d0", "required"),
    "no input": edit("input = 2000\n", "", 18, "classes[1].input", "required"),
    "no decode": edit("decode = 211\n", "", 12, "classes[0].decode", "required"),
    "no rate": edit("rate = 0.5\n", "", 18, "classes[1].rate", "required"),
    "one class in single brackets": Bad(
        GOOD.partition("[[classes]]")[0].encode() + b'[classes]\nname = "a"\n', 12, "classes", "not a table"
    ),
    "misspelt key": edit("decode = 211", "decodes = 211", 15, "classes[0].decodes", "did you mean decode?"),
    "misspelt table": edit("[timing]", "[timming]", 8, "timming", "did you mean timing?"),
    "unknown key": edit("[plan]", "[plan]\ncolour = 1", 25, "plan.colour", "known here: delta, horizon, segments"),
    "unknown table": edit("[plan]", "[[xyz]]\n[plan]", 24, "xyz", "known here: schema, name, gpu"),
    "field name of the schema": edit("schema = 1", "version = 1", 1, "version", "unknown key"),
    "quoted key": edit("[plan]", '[plan]\n"a\\u001b b" = 1', 25, "plan.'a\\x1b b'", "unknown key"),
    # Types
    "schema 2": edit("schema = 1", "schema = 2", 1, "schema", "must be 1, the only schema there is, not 2"),
    "schema as a float": edit("schema = 1", "schema = 1.0", 1, "schema", "must be 1"),
    "schema as a boolean": edit("schema = 1", "schema = true", 1, "schema", "not true"),
    "number as a name": edit('"bad on purpose"', "7", 2, "name", "must be a string, not 7"),
    "tokens as a float": edit("40_000", "40000.0", 5, "gpu.memory_tokens", "a whole number, not 40000.0"),
    "tokens as a date": edit("40_000", "2024-01-01", 5, "gpu.memory_tokens", "a whole number, not 2024-01-01"),
    "word as a switch": edit(
        "= 16", '= 16\nprefix_caching = "on"', 7, "gpu.prefix_caching", "must be true or false, not 'on'"
    ),
    "tokens as a boolean": edit("1155", "true", 14, "classes[0].input", "a whole number of tokens, a table"),
    "rate as a string": edit("rate = 1.5", 'rate = "1.5"', 16, "classes[0].rate", "a number, not '1.5'"),
    "rate as a boolean": edit("rate = 1.5", "rate = false", 16, "classes[0].rate", "a number, not false"),
    "decode as a float": edit("= 211", "= 211.5", 15, "classes[0].decode", "not 211.5"),
    "decode as a list": edit("= 211", "= [211]", 15, "classes[0].decode", "not a list"),
    "time as a boolean": edit('"14.5 ms"', "true", 9, "timing.d0", "a number of seconds or a string such as"),
    "time as a list": edit('"14.5 ms"', "[\n1,\n]", 9, "timing.d0", "not a list"),
    "table as a number": Bad(b"gpu = 5\n" + SHARES.encode().replace(b"[gpu]\nmemory", b"[plan.x]\nmemory"), 1, "gpu",
                             "must be a table, not 5"),
    "gate as a string": edit("require = [", 'require = "x" # [', 28, "gate.require", "must be a list, not 'x'"),
    "negative overhead": edit(
        'd1 = "0.25 us"', "request_overhead = -1", 10, "timing.request_overhead", "must be 0, or a time from 1e-09 s to"
    ),
    "measured as a number": measured("3", "", "must be a table, not 3"),
    "unknown range": measured("{ kv_token = [0, 9] }", ".kv_token", "did you mean kv_tokens?"),
    "range of one": measured("{ sequences = [9] }", ".sequences[1]", "required"),
    "range backwards": measured("{ kv_tokens = [9, 1] }", ".kv_tokens", "least first and then the most, not [9, 1]"),
    "range without end": measured("{ kv_tokens = [0, inf] }", ".kv_tokens[1]", "must be a finite number, not inf"),
    "band from nothing": measured("{ band = [0, 1.2] }", ".band[0]", "must be at least 0.001, not 0"),
    "unknown basis": origin('"guessed"', "", "must be one of measured, stated, estimated, assumed, or a table"),
    "unknown basis in a table": origin('{ basis = "guessed" }', ".basis", "'estimated' or 'assumed', not 'guessed'"),
    "no basis": origin('{ source = "a log" }', ".basis", "required"),
    "unknown key of an origin": origin('{ basis = "stated", form = "x" }', ".form", "known here: basis, source, date"),
    "source of two lines": origin('{ basis = "stated", source = "a\\nb" }', ".source", "printable characters"),
    "date as text": origin('{ basis = "stated", date = "2026-11-22" }', ".date", "without quotes, not '2026-11-22'"),
    "date with a time": origin('{ basis = "stated", date = 2026-11-22T08:00:00Z }', ".date", "not 2026-11-22T08:00:00"),
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
    "no such unit": edit('"14.5 ms"', '"14.5 mins"', 9, "timing.d0", "'14.5 mins' is not a time"),
    "unit of memory for a time": edit('"1 h"', '"1 GiB"', 25, "plan.horizon", "not a time"),
    "too large a time": edit('"1 h"', '"1e999 h"', 25, "plan.horizon", "not a time"),
    "no such unit of memory": edit(
        "memory_tokens = 40_000", 'memory = "5 gigs"\nkv_bytes_per_token = 8', 5, "gpu.memory", "KiB, MiB, GiB, TiB"
    ),
    "memory as a number": edit(
        "memory_tokens = 40_000", "memory = 5\nkv_bytes_per_token = 8", 5, "gpu.memory", 'such as "5.05 GiB", not 5'
    ),
    "more memory than there is": edit(
        "memory_tokens = 40_000", 'memory = "1e999 TiB"\nkv_bytes_per_token = 8', 5, "gpu.memory", "not an amount"
    ),
    "memory for less than a token": edit(
        "memory_tokens = 40_000", 'memory = "1 kB"\nkv_bytes_per_token = 131_072', 5, "gpu.memory", "not 0"
    ),
    # Ranges
    "nan": edit("rate = 1.5", "rate = nan", 16, "classes[0].rate", "must be 0, or a number from 1e-09 to"),
    "nan as a weight": edit("50 = 0.2", "50 = nan", 21, "classes[1].decode.50", "must be a finite number, not nan"),
    "rates 0": Bad(
        GOOD.replace("rate = 1.5", "rate = 0").replace("rate = 0.5", "rate = 0").encode(),
        *(16, "classes[0].rate", "must be above 0 in one class at least, not 0 in all"),
    ),
    "tiny rate": edit("rate = 1.5", "rate = 1e-10", 16, "classes[0].rate", "must be 0, or a number from 1e-09 to"),
    "d0 = 0": edit('"14.5 ms"', "0.0", 9, "timing.d0", "must be a time from 1e-09 s to 3,600 s, not 0.0"),
    "negative d1": edit('"0.25 us"', '"-1 us"', 10, "timing.d1", "must be 0, or a time from 1e-12 s to"),
    "negative input": edit("1155", "-1", 14, "classes[0].input", "must be at least 0, not -1"),
    "input beyond the bound": edit("1155", "10_000_001", 14, "classes[0].input", "at most 10,000,000, not 10000001"),
    "memory beyond the bound": edit("40_000", "100_000_001", 5, "gpu.memory_tokens", "at most 100,000,000"),
    "no memory at all": edit("40_000", "0", 5, "gpu.memory_tokens", "must be at least 1, not 0"),
    "decode 0": edit("= 211", "= 0", 15, "classes[0].decode", "must be at least 1, not 0"),
    "decode beyond the bound": edit("= 211", "= 1_000_001", 15, "classes[0].decode", "at most 1,000,000, not 1000001"),
    "length 0": edit("50 = 0.2", "0 = 0.2", 21, "classes[1].decode.0", "from 1 to 1,000,000, not '0'"),
    "length spelt with a zero": edit("50 = 0.2", "050 = 0.2", 21, "classes[1].decode.050", "not '050'"),
    "length beyond the bound": edit("50 = 0.2", "1000001 = 1", 21, "classes[1].decode.1000001", "to 1,000,000"),
    "length as a float": edit("50 = 0.2", "1.5 = 0.2", 21, "classes[1].decode.1", "must be a number"),
    "weight 0": edit("50 = 0.2", "50 = 0", 21, "classes[1].decode.50", "not 0"),
    "rate beyond the bound": edit("rate = 1.5", "rate = 1.1e9", 16, "classes[0].rate", "to 1,000,000,000, not 1100"),
    "iteration of hours": edit('"14.5 ms"', '"2 h"', 9, "timing.d0", "from 1e-09 s to 3,600 s, not '2 h'"),
    "cost of less than a picosecond": edit('"0.25 us"', "1e-13", 10, "timing.d1", "from 1e-12 s to 3,600 s"),
    "blocks beyond the bound": edit("= 16", "= 1_000_001", 6, "gpu.block_tokens", "at most 1,000,000"),
    "horizon of a century": edit('"1 h"', "3e9", 25, "plan.horizon", "from 1e-09 s to 320,000,000 s"),
    "delta beyond the methods": edit("[plan]", "[plan]\ndelta = 1e-13", 25, "plan.delta", "at least 1e-12"),
    "weight of less than any": edit("200 = 0.8", "200 = 1e-10", 21, "classes[1].decode.200", "at least 1e-09, not"),
    "enormous weight": edit("200 = 0.8", "200 = 1e308", 21, "classes[1].decode.200", "not 1e+308"),
    "no lengths": edit("{ 50 = 0.2, 200 = 0.8 }", "{}", 21, "classes[1].decode", "must have at least 1, not 0"),
    "law misspelt": edit(
        "{ 50 = 0.2, 200 = 0.8 }", "{ lognorml = { mean = 9, cv = 1 } }", 21, "classes[1].decode.lognorml",
        "unknown key; did you mean lognormal?"
    ),
    "two laws": edit(
        "= 211", "= { uniform = [1, 2], geometric = 3 }", 15, "classes[0].decode.geometric", "beside uniform"
    ),
    "law and weights": edit("50 = 0.2", "geometric = 3", 21, "classes[1].decode.200", "known here: uniform, geom"),
    "uniform backwards": edit("1155", "{ uniform = [9, 3] }", 14, "classes[0].input.uniform", "not [9, 3]"),
    "uniform from 0": edit("1155", "{ uniform = [0, 3] }", 14, "classes[0].input.uniform[0]", "at least 1, not 0"),
    "uniform of three": edit("1155", "{ uniform = [1, 2, 3] }", 14, "classes[0].input.uniform", "must have at most 2"),
    "geometric below 1": edit("1155", "{ geometric = 0.5 }", 14, "classes[0].input.geometric", "at least 1, not 0.5"),
    "lognormal of a number": lognormal("400", "must be a table, not 400"),
    "lognormal of nothing": lognormal("{}", "needs mean and cv, or median and sigma"),
    "lognormal without a spread": lognormal("{ mean = 9 }", "needs cv beside mean"),
    "lognormal with mean and median": lognormal("{ mean = 9, median = 8, cv = 1 }", "not allowed beside", ".median"),
    "lognormal with mean and sigma": lognormal("{ mean = 9, sigma = 1 }", "not allowed beside mean; give cv", ".sigma"),
    "lognormal of an unknown": lognormal("{ mean = 9, sd = 1 }", "unknown key; known here: mean, cv", ".sd"),
    "lognormal mean below 1": lognormal("{ mean = 0.9, cv = 1 }", "must be at least 1, not 0.9", ".mean"),
    "lognormal mean of text": lognormal('{ mean = "9", cv = 1 }', "not '9'", ".mean"),
    "lognormal mean of no number": lognormal("{ mean = nan, cv = 1 }", "not nan", ".mean"),
    "lognormal without spread": lognormal("{ mean = 9, cv = 0 }", "must be at least 0.001, not 0", ".cv"),
    "lognormal of negative sigma": lognormal("{ median = 9, sigma = -1 }", "must be at least 0.001, not -1", ".sigma"),
    "lognormal too long for anything": lognormal(
        "{ mean = 90_000, cv = 2 }", "the longest (its quantile .9999) must be at most 1,000,000, not 4,5"
    ),
    "lognormal too long for the memory": Bad(
        GOOD.replace("1155", "{ lognormal = { mean = 4000, cv = 0.95 } }").encode(),
        12, "classes[0]", "(input 57,337 + decode 211, in blocks of 16), and memory holds 40,000",
    ),
    "shared beyond the shortest input": Bad(
        GOOD.replace("1155", "{ uniform = [500, 900] }\nshared = 600").encode(),
        15, "classes[0].shared", "at most the shortest input, 500 tokens, not 600; in [[sessions]] with turns = 1",
    ),
    "reuse of inputs that vary": Bad(
        GOOD.replace(
            "1155", '{ uniform = [500, 900] }\nreuse = { tokens = 9, share = 0.5, gap = { law = "fixed", value = 1 } }'
        ).encode(),
        15, "classes[0].reuse", "not modelled where input varies",
    ),
    "weight in a table over lines": edit(
        "{ 50 = 0.2, 200 = 0.8 }", "{\n 50 = 1,\n 60 = 1, # }\n\n 70 = 0,\n}", 25, "classes[1].decode.70", "not 0"
    ),
    "weight in a table of its own": edit(
        "decode = { 50 = 0.2, 200 = 0.8 }\nrate = 0.5\n",
        "rate = 0.5\n[classes.decode]\n50 = 1\n200 = -1\n", 24, "classes[1].decode.200", "not -1"
    ),
    "delta 0": edit("[plan]", "[plan]\ndelta = 0", 25, "plan.delta", "must be at least 1e-12, not 0"),
    "delta over 1": edit("[plan]", "[plan]\ndelta = 1.5", 25, "plan.delta", "must be at most 1, not 1.5"),
    "horizon 0": edit('"1 h"', '"0 s"', 25, "plan.horizon", "not '0 s'"),
    "segments 0": edit("[plan]", "[plan]\nsegments = 0", 25, "plan.segments", "a whole number from 1, not 0"),
    "blocks of 0": edit("= 16", "= 0", 6, "gpu.block_tokens", "must be at least 1, not 0"),
    "no sequences": edit("[timing]", "max_num_seqs = 0\n[timing]", 8, "gpu.max_num_seqs", "at least 1, not 0"),
    "no batch": edit(
        "[timing]", "max_num_batched_tokens = 0\n[timing]", 8, "gpu.max_num_batched_tokens", "at least 1, not 0"
    ),
    "empty name": edit('"chat"', '""', 13, "classes[0].name", "printable characters, not ''"),
    "escape sequence in a name": edit('"chat"', '"\\u001b[31m"', 13, "classes[0].name", "not '\\x1b[31m'"),
    "long name": edit('"chat"', '"' + "x" * 201 + '"', 13, "classes[0].name", "1 to 200 printable"),
    # Relations
    "memory twice": edit("block_tokens", 'memory = "1 GiB"\nblock_tokens', 6, "gpu.memory", "beside memory_tokens"),
    "bytes beside tokens": edit(
        "block_tokens", "kv_bytes_per_token = 8\nblock_tokens", 6, "gpu.kv_bytes_per_token", "beside memory_tokens"
    ),
    "memory without bytes per token": edit(
        "memory_tokens = 40_000", 'memory = "5 GiB"', 4, "gpu", "needs kv_bytes_per_token beside memory"
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
        GOOD.replace('"0.25 us"', "-1").replace("= 211", "= 0").encode(), 10, "timing.d1", "must be 0, or a time"
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
        "[plan]", '[workload]\nperiod = "24 h"\n[plan]', 24, "workload.schedule", "required beside period"
    ),
    "workload of nothing": edit("[plan]", "[workload]\n[plan]", 24, "workload", "needs rate or schedule or cv or"),
    "schedule of nothing": scheduled(day(), 26, "", "must have at least 1, not 0"),
    "schedule that is a table": edit(
        "[plan]", "[workload]\nperiod = 9\n[workload.schedule]\nat = 0\nfactor = 2\n[plan]",
        26, "workload.schedule", "must be a list, not a table"
    ),
    "1,001 steps": scheduled(
        day(*(f"at = {i}, factor = 1" for i in range(1001))), 26, "", "must have at most 1,000, not more"
    ),
    "unknown key of a step": scheduled(day("at = 0, factr = 2"), 27, "[0].factr", "did you mean factor?"),
    "step without a time": scheduled(day("factor = 2"), 27, "[0]", "needs at beside factor"),
    "step without a factor": scheduled(day(NIGHT, "at = 9"), 28, "[1]", "needs factor or factors beside at"),
    "steps out of order": scheduled(
        day(NIGHT, 'at = "8 h", factor = 2', 'at = "7 h", factor = 1'),
        29, "[2].at", "must be later than the step before, after 8 h, not 7 h"
    ),
    "two steps at once": scheduled(day(NIGHT, NIGHT), 28, "[1].at", "must be later than the step before"),
    "step after the period": scheduled(
        day('at = "24 h", factor = 2'), 27, "[0].at", "must be before the period ends, less than 24 h, not 24 h"
    ),
    "negative time": scheduled(day("at = -1, factor = 2"), 27, "[0].at", "must be 0, or a time"),
    "time of day": scheduled(day('at = "8:00", factor = 2'), 27, "[0].at", "is not a time"),
    "negative factor": scheduled(day("at = 0, factor = -1"), 27, "[0].factor", "must be 0, or a number from 1e-06"),
    "factor that is true": scheduled(day("at = 0, factor = true"), 27, "[0].factor", "not true"),
    "factor of no class": scheduled(
        day("at = 0, factors = { chta = 2 }"), 27, "[0].factors.chta", "no class has this name; did you mean chat?"
    ),
    "huge factor of a class": scheduled(
        day("at = 0, factors = { chat = 1e7 }"), 27, "[0].factors.chat", "not 10000000.0"
    ),
    "no factors": scheduled(day("at = 0, factors = {}"), 27, "[0].factors", "must have at least 1, not 0"),
    "class that never arrives": scheduled(
        day("at = 0, factors = { code = 0 }", "at = 9, factor = 0"), 26, "", "class 'code' never arrives"
    ),
    "amplitude over 1": scheduled(day("amplitude = 1.5"), 27, "[0].amplitude", "must be at most 1, not 1.5"),
    "negative amplitude": scheduled(day("amplitude = -0.5"), 27, "[0].amplitude", "must be at least 0"),
    "step and sinusoid in one": scheduled(
        day("amplitude = 0.5, factor = 2"), 27, "[0].factor", "not allowed beside amplitude"
    ),
    "steps and a sinusoid": scheduled(day(NIGHT, "amplitude = 0.5"), 28, "[1].amplitude", "not one of 2 tables"),
    "peak of no sinusoid": scheduled(day("at = 0, factor = 2, peak = 9"), 27, "[0].peak", "not allowed beside at"),
    "peak after the period": scheduled(day("amplitude = 0.5, peak = 9", period="8"), 27, "[0].peak", "less than 8 s"),
}  # fmt: skip
