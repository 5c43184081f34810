"""Small changes of a C file, one at a time: mutants(text) yields Mutant.

Operators are swapped, numbers changed by one, conditions negated, statements deleted, returned values replaced. A change that
does not compile, or that the compiler turns into the same code, is thrown away by the caller. Lines of the preprocessor stay as
they are.
"""
import dataclasses
import re

SWAPS = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",),
         "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "%": ("*",), "+=": ("-=",), "-=": ("+=",), "*=": ("/=",), "/=": ("*=",),
         "++": ("--",), "--": ("++",), "&&": ("||",), "||": ("&&",), "&": ("|",), "|": ("&",), "|=": ("&=",), "&=": ("|=",),
         "<<": (">>",), ">>": ("<<",), "true": ("false",), "false": ("true",)}
BINARY_ONLY = set("+-*&|<>/%")  # written with a space on both sides
TOKEN = re.compile(r"""
    (?P<skip>/\*.*?\*/|//[^\n]*|^[ \t]*\#(?:\\\n|[^\n])*|\s+)
  | (?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
  | (?P<number>\d[\w.]*)
  | (?P<word>[A-Za-z_]\w*)
  | (?P<mark><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)
""", re.X | re.S | re.M)
NO_STATEMENT = {"return", "if", "else", "for", "while", "do", "switch", "case", "default", "goto", "struct", "enum", "union", "const", "static", "bool",
                "int", "char", "unsigned", "size_t", "double", "void", "sizeof", "assert", "ssize_t"}


@dataclasses.dataclass
class Token:
    kind: str
    text: str
    at: int

    @property
    def end(self):
        return self.at + len(self.text)


@dataclasses.dataclass
class Mutant:
    function: str
    line: int
    before: str  # the lines that change, on one line
    after: str
    source: str
    own: str  # the changed function, and all that is outside of functions


def tokens(text):
    return [Token(m.lastgroup, m.group(), m.start()) for m in TOKEN.finditer(text) if m.lastgroup != "skip"]


def closing(found, i):
    """The index of the bracket that closes the one at i."""
    depth = 0
    for j in range(i, len(found)):
        depth += found[j].text in "([{"
        depth -= found[j].text in ")]}"
        if depth == 0:
            return j
    raise ValueError("a bracket is not closed")


def operators(text, found):
    for i, t in enumerate(found):
        if t.text == "!" and t.kind == "mark":
            yield t.at, t.end, ""
        if t.kind == "number" and re.fullmatch(r"\d+", t.text):
            yield t.at, t.end, str(int(t.text) + 1)
            if int(t.text) > 0:
                yield t.at, t.end, str(int(t.text) - 1)
        if t.kind not in ("mark", "word") or t.text not in SWAPS:
            continue
        if t.text in BINARY_ONLY and not (text[t.at - 1].isspace() and text[t.end].isspace()):
            continue
        for other in SWAPS[t.text]:
            yield t.at, t.end, other


def conditions(text, found):
    for i, t in enumerate(found):
        if t.text in ("if", "while") and found[i + 1].text == "(":
            end = found[closing(found, i + 1)]
            yield found[i + 1].at, end.end, "(!" + text[found[i + 1].at:end.end] + ")"


def statement_end(found, i):
    depth = 0
    for j in range(i, len(found)):
        if found[j].text == ";" and depth == 0:
            return j
        depth += found[j].text in "([{"
        depth -= found[j].text in ")]}"
        if depth < 0:
            return None
    return None


def statements(text, found):
    for i, t in enumerate(found[1:], 1):
        before = found[i - 1].text
        if t.text == "return" and found[i + 1].text != ";":
            value = text[found[i + 1].at:found[statement_end(found, i)].at]
            if found[i + 2].text != ";":  # of a single word: the same as 0
                yield found[i + 1].at, found[i + 1].at + len(value), "!(" + value + ")"
            if value not in ("0", "false", "NULL"):
                yield found[i + 1].at, found[i + 1].at + len(value), "0"
            continue
        if before not in (";", "{", "}", ")", "else", ":") or (t.text in NO_STATEMENT and not (t.text == "return" and found[i + 1].text == ";")):
            continue
        if t.kind != "word" and t.text not in ("*", "(", "++", "--"):
            continue
        end = statement_end(found, i)
        if end is None or (found[i + 1].kind == "word" and t.kind == "word"):
            continue
        if before == ")" and not is_controlled(found, i - 1) or before == ":" and not is_label(found, i - 1):
            continue
        yield t.at, found[end].end, ";"


def is_controlled(found, i):
    """Is the bracket that ends at i the head of an if, a for or a while?"""
    depth = 0
    for j in range(i, 0, -1):
        depth += found[j].text == ")"
        depth -= found[j].text == "("
        if depth == 0:
            return found[j - 1].text in ("if", "for", "while")
    return False


def is_label(found, i):
    return any(found[j].text == "case" for j in range(max(0, i - 3), i)) or found[i - 1].text == "default"


def bodies(text):
    """The functions: (from, to, name)."""
    for m in re.finditer(r"^([a-z_]\w*)\([^;{}]*\)\n\{.*?^\}", text, re.M | re.S):
        yield m.start(), m.end(), m.group(1)


def one_line(text):
    return " ".join(text.split())


def mutants(text):
    found = tokens(text)
    edits = sorted(set([*operators(text, found), *conditions(text, found), *statements(text, found)]))
    asserts = [(t.at, found[closing(found, i + 1)].end) for i, t in enumerate(found) if t.text == "assert"]
    functions = list(bodies(text))
    outside = "".join(text[a:b] for a, b in zip([0, *(end for _, end, _ in functions)], [*(start for start, _, _ in functions), len(text)]))
    for start, end, name in functions:
        for at, to, new in edits:
            if not start <= at < end or any(a <= at < b for a, b in asserts):
                continue
            left, right = text.rfind("\n", 0, at) + 1, text.find("\n", to)
            new += "\n" * (text[at:to].count("\n") - new.count("\n"))  # the lines behind it keep their numbers
            yield Mutant(name, text.count("\n", 0, at) + 1, one_line(text[left:right]), one_line(text[left:at] + new + text[to:right]),
                         text[:at] + new + text[to:], outside + text[start:at] + new + text[to:end])
