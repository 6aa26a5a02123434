"""Every key of a TOML text is found on the line where it is written."""

from every import every

from kvplan.profile.positions import KeyPath, line_at, offsets

TEXT = '''\
# [gpu] in a comment
title = "a = [b] # not a comment" # [x]
gpu . "block tokens" = 16
timing.d0 = "1 s"

[plan] # the plan
text = """
horizon = 5
\\""" [plan]
quoted at the end""""
literal = \'\'\'
"horizon = \'6\'\'\'\'
horizon = 7

[[classes]]
name = 'a' # ]
decode = { 10 = 1, "20" = { x = [1, 2] }, 30.5 = 3 }
[classes.more]
note = 1
[[classes.parts]]
[[classes.parts]]
note = 2

 [[ classes ]]
[[classes.parts]]
decode = [ # [
  "a", "b, c", # , "d"

  # more
  ["e",
   { f = 1,
     g = 2 }],
]
"[[odd]]" = {}
[a.a]
a.a = 1
'''


@every(
    ("path", "line"),
    [
        (("title",), 2),
        (("gpu", "block tokens"), 3),
        (("gpu",), 3),
        (("timing", "d0"), 4),
        (("plan",), 6),
        (("plan", "text"), 7),
        (("plan", "literal"), 11),
        (("plan", "horizon"), 13),
        (("classes",), 15),
        (("classes", 0), 15),
        (("classes", 0, "name"), 16),
        (("classes", 0, "decode", "20", "x", 1), 17),
        (("classes", 0, "decode", "30", "5"), 17),
        (("classes", 0, "more", "note"), 19),
        (("classes", 0, "parts", 0), 20),
        (("classes", 0, "parts", 1), 21),
        (("classes", 0, "parts", 1, "note"), 22),
        (("classes", 1), 24),
        (("classes", 1, "parts", 0), 25),
        (("classes", 1, "parts", 0, "decode"), 26),
        (("classes", 1, "parts", 0, "decode", 0), 27),
        (("classes", 1, "parts", 0, "decode", 1), 27),
        (("classes", 1, "parts", 0, "decode", 2), 30),
        (("classes", 1, "parts", 0, "decode", 2, 1), 31),
        (("classes", 1, "parts", 0, "decode", 2, 1, "g"), 32),
        (("classes", 1, "parts", 0, "[[odd]]"), 34),
        (("a", "a", "a", "a"), 36),
    ],
)
def test_a_key_is_found_on_its_line(path: KeyPath, line: int) -> None:
    (offset,) = offsets(TEXT, [path])
    assert line_at(TEXT, offset) == line


@every(
    ("path", "line"),
    [
        (("absent",), 1),
        (("plan", "absent"), 6),
        (("classes", 1, "absent", "more"), 24),
        (("classes", 2), 15),
        (("classes", 0, "decode", "40"), 17),
    ],
)
def test_an_absent_key_is_placed_at_the_nearest_table_around_it(path: KeyPath, line: int) -> None:
    (offset,) = offsets(TEXT, [path])
    assert line_at(TEXT, offset) == line
