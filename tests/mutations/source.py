"""The C sources of the pool, as far as an edit needs them: tokens, and what is defined at file scope.

No preprocessor runs: a name that is defined twice, under #if and #else, has two definitions. The
sources are formatted by clang-format, so that what is defined at file scope begins in column 0, and
the body of a function has its braces there.
"""

import re

SPACE = re.compile(r"(?:\s|\\\n|//[^\n]*|/\*.*?\*/)+", re.S)
TOKEN = re.compile(
    r'[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|'
    r"->|\+\+|--|<<=|>>=|<<|>>|[<>=!+\-*/%&|^]=|&&|\|\||\.\.\.|##|.",
    re.S,
)
LINE = re.compile(r"(?:\\\n|/\*.*?\*/|[^\n])*", re.S)  # of a directive, with those that it goes on in
ATTRIBUTES = {"__attribute__", "_Alignas", "__asm__", "asm", "typeof", "__typeof__"}


class Token:
    """A word of C, and where it stands. A function's own braces are BEGIN and END."""

    __slots__ = ("text", "begin", "end", "index")

    def __init__(self, text, begin, end, index):
        self.text, self.begin, self.end, self.index = text, begin, end, index


BEGIN, END = "{ of the function", "} of the function"


def tokens_of(text, begin=0, end=None):
    found, end = [], len(text) if end is None else end
    while begin < end:
        space = SPACE.match(text, begin, end)
        if space:
            begin = space.end()
            continue
        token = TOKEN.match(text, begin, end)
        word, alone = token[0], begin == 0 or text[begin - 1] == "\n"
        if alone and word in "{}" and text[token.end() : token.end() + 1] in ("", "\n"):
            word = BEGIN if word == "{" else END
        found.append(Token(word, begin, token.end(), len(found)))
        begin = token.end()
    return found


def words_of(text):
    return [token.text for token in tokens_of(text)]


class Definition:
    """A function, object, type or macro: its tokens, with all that stands before its name."""

    def __init__(self, source, name, tokens, is_macro=False):
        self.source, self.name, self.tokens, self.is_macro = source, name, tokens, is_macro
        self.words = [token.text for token in tokens]
        self.is_function = self.words[-1] == END

    def find(self, words):
        """Every place, among its tokens, where these stand one after the other."""
        last = len(self.words) - len(words) + 1
        return [i for i in range(last) if self.words[i] == words[0] and self.words[i : i + len(words)] == words]

    def line(self, place=0):
        return self.source.text.count("\n", 0, self.tokens[place].begin) + 1

    def at(self, place=0):
        return f"{self.source.path}:{self.line(place)}"


def split(text):
    """The pieces of a file at file scope: (its tokens, is a directive)."""
    piece, depth, at = [], 0, 0
    tokens = tokens_of(text)
    while at < len(tokens):
        token = tokens[at]
        alone = token.begin == 0 or text[token.begin - 1] == "\n"
        if depth == 0 and token.text == "#":
            line_end = LINE.match(text, token.begin).end()
            begin = at
            while at < len(tokens) and tokens[at].begin < line_end:
                at += 1
            yield tokens[begin:at], True
            continue
        if piece and depth == 0 and alone and piece[-1].text == ")" and token.text not in (BEGIN, "{"):
            yield piece, False  # a macro's call without a semicolon
            piece = []
        piece.append(token)
        depth += token.text in ("(", "[", "{", BEGIN)
        depth -= token.text in (")", "]", "}", END)
        if depth == 0 and token.text in (";", END):
            yield piece, False
            piece = []
        at += 1


def outermost(piece):
    """The tokens of a piece that stand in no bracket, and each bracket that opens."""
    depth = 0
    for at, token in enumerate(piece):
        depth -= token.text in (")", "]", "}", END)
        if depth == 0:
            yield at, token.text
        depth += token.text in ("(", "[", "{", BEGIN)


def name_of(piece):
    """What a piece defines; None for what only declares, or has no name."""
    words, last = [token.text for token in piece], None
    for at, word in outermost(piece):
        if word == "(" and last and last not in ATTRIBUTES:
            if words[at + 1] == "*":
                return words[at + 2]  # a pointer to a function
            if words[-1] == ";":
                return None
            # HOOK(name, ...) {...} defines the name.
            return words[at + 1] if last.isupper() and words[at + 1].isidentifier() else last
        if word in ("=", "[", "{", ";", BEGIN):
            declares = word == ";" and words[0] in ("struct", "union", "enum", "extern")
            return None if declares or last in ("struct", "union", "enum") else last
        if word.isidentifier():
            last = word
    return last


class Source:
    """A file, and what it defines."""

    def __init__(self, path, text):
        self.path, self.text, self.definitions = path, text, []
        for piece, is_directive in split(text):
            is_macro = is_directive and len(piece) > 2 and piece[1].text == "define"
            name = piece[2].text if is_macro else None if is_directive else name_of(piece)
            if name:
                self.definitions.append(Definition(self, name, piece, is_macro))
