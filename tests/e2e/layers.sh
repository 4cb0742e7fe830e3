#!/usr/bin/env bash
# scripts/layers.py and scripts/sizes.py on small trees that are made on the spot: one that is as it
# should be, and that one with one thing wrong at a time.
set -u
cd "$(dirname "$0")/../.." || exit 2
if ! command -v python3 >/dev/null; then
    echo "skip layers: there is no python3"
    exit 0
fi
failed=0
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

check() { # name, what is wrong; nothing where all is well
    if [ -z "$2" ]; then
        echo "ok $1"
    else
        echo "FAIL $1: $2"
        failed=1
    fi
}

file() { # path; its text is the input
    mkdir -p "$root/$(dirname "$1")"
    cat >"$root/$1"
}

# Two floors of the core, two kinds side by side above them, and the shim.
good_tree() {
    rm -rf "${root:?}"/*
    file core/FLOORS <<<"core/base     the ground
core/blocks   blocks
core/one      a kind
| core/two    another one
shim          the top # and nothing above"
    file core/base/clock.h <<<'int clock_now(void);'
    file core/base/clock.c <<<'#include "clock.h"
int clock_now(void) { return 1; }'
    file core/blocks/list.h <<<'int list_length(void);'
    file core/blocks/list.c <<<'#include "list.h"
#include "core/base/clock.h"
int list_length(void) { return clock_now(); }'
    file core/blocks/block.h <<<'#include "list.h"
static inline int block_find(void) { return list_length(); }'
    file core/one/one.c <<<'#include "core/blocks/block.h"
int one_takes(void);
int one_takes(void) { return block_find(); }'
    file core/two/two.c <<<'int two_takes(void);
int two_takes(void) { return 2; }'
    file shim/hook.c <<<'int one_takes(void), two_takes(void), hook(void);
int hook(void) { return one_takes() + two_takes(); }'
    file docs/floors.svg </dev/null
}

compile() {
    local source
    (cd "$root" && for source in core/*/*.c shim/*.c; do
        mkdir -p "build/obj/$(dirname "$source")"
        ${CC:-cc} -I. -c "$source" -o "build/obj/${source%.c}.o" || exit
    done)
}

expect_of() { # command, name, status, lines that are to be there
    local command=$1 name=$2 status=$3 line got
    shift 3
    $command >"$root/output" 2>&1
    got=$?
    check "$name: exit status $status" "$([ $got -eq "$status" ] || echo "$got: $(cat "$root/output")")"
    for line in "$@"; do
        check "$name: $line" "$(grep -qxF -- "$line" "$root/output" || cat "$root/output")"
    done
}

expect() { # name, status, lines that are to be there
    expect_of "scripts/layers.py build $root" "$@"
}

# The tree as it has become, with the picture of it: then what is wrong is not the picture.
expect_offence() { # name, lines that are to be there
    local name=$1
    shift
    compile && scripts/layers.py --svg build "$root"
    expect "$name" 1 "$@"
    check "$name: nothing about the picture" "$(grep -F floors.svg "$root/output")"
}

good_tree
compile
expect "a picture that is not drawn yet" 1 \
    "docs/floors.svg is not the picture of this: scripts/layers.py --svg build draws it"
scripts/layers.py --svg build "$root"
expect "a good tree" 0 "core/blocks: blocks" "   1  list" "   2  block" "  uses core/base 2" \
    "  uses core/blocks 2" "  uses core/one 1, core/two 1"
cp "$root/docs/floors.svg" "$root/first"
scripts/layers.py --svg build "$root"
check "the picture is the same each time" "$(cmp "$root/first" "$root/docs/floors.svg" 2>&1)"
check "the picture is XML" \
    "$(python3 -c 'import sys, xml.dom.minidom as d; d.parse(sys.argv[1])' "$root/first" 2>&1)"
cp "$root/build/obj/core/one/one.o" "$root/build/obj/core/base/gone.o"
expect "an object whose source is gone" 0

good_tree
file core/base/early.c <<<'int list_length(void), early(void);
int early(void) { return list_length(); }'
expect_offence "a call up" "core/base uses core/blocks, which is above it, 1 time" \
    "  core/base/early.c:1: list_length (core/blocks/list.c:3)" \
    "circle among directories: core/base core/blocks"

good_tree
file core/two/two.h <<<'struct two { int one; };'
echo '#include "core/two/two.h"' >>"$root/core/base/clock.h"
expect_offence "an #include line up" "core/base uses core/two, which is above it, 1 time" \
    '  core/base/clock.h:2: #include "core/two/two.h" (core/two/two.h)'

good_tree
file core/one/both.c <<<'int two_takes(void), both(void);

int both(void) { return two_takes(); }'
expect_offence "a call of what stands beside" "core/one uses core/two, which stands beside it, 1 time" \
    "  core/one/both.c:1: two_takes (core/two/two.c:2)"

good_tree
echo '#include "block.h"' >>"$root/core/blocks/list.c"
expect_offence "a circle of files" "circle among files: core/blocks/block core/blocks/list" \
    "  core/blocks/list uses core/blocks/block, 1 time" \
    '    core/blocks/list.c:4: #include "block.h" (core/blocks/block.h)'

good_tree
file core/one/more.c <<<'int one_takes(void), more(void);
int more(void) { return one_takes(); }'
echo 'int more(void), less(void); int less(void) { return more(); }' >>"$root/core/one/one.c"
expect_offence "files that call each other" "circle among files: core/one/more core/one/one" \
    "    core/one/one.c:4: more (core/one/more.c:2)" "    core/one/more.c:1: one_takes (core/one/one.c:3)"

good_tree
file core/three/three.c <<<'int three;'
expect_offence "a directory on no floor" "core/three is on no floor: core/FLOORS must say where it stands"

good_tree
file tests/rules.def </dev/null
echo '#include "tests/rules.def"' >>"$root/shim/hook.c"
expect_offence "what is on no floor" "shim uses tests, which is on no floor, 1 time" \
    '  shim/hook.c:3: #include "tests/rules.def" (tests/rules.def)'

good_tree
echo "core/four   nothing yet" >>"$root/core/FLOORS"
expect_offence "a floor without files" "core/four has a floor and no files: core/FLOORS names it for nothing"

good_tree
echo "core/base   again" >>"$root/core/FLOORS"
compile
expect "a floor that is named twice" 2 \
    "layers.py: core/FLOORS:6: must be a directory that is named once, after | beside the one above it"

good_tree
compile
file core/one/unbuilt.c <<<'int unbuilt;'
expect "a source without an object" 2 \
    "layers.py: build: core/one/unbuilt.c has no object there: make library makes it"

# --- sizes ----------------------------------------------------------------------------------------

lines() { # how many, text
    printf "$2%.0s\n" $(seq "$1")
}

large_tree() { # lines of the file, lines of the function, fields
    rm -rf "${root:?}"/*
    file core/base/file.c < <(lines "$1" '/* */')
    file core/base/function.c < <(
        printf 'static int first;\n\n__attribute__((noinline)) int counts(int a,\n           int b)\n{\n'
        lines $(($2 - 4)) '    a += b;'
        printf '}\n\nint table[] = {\n'
        lines 50 '    1,'
        echo '};'
    )
    file core/base/struct.h < <(
        printf 'struct wide {\n    /* the first ones */\n    struct {\n        int x, y;\n    } point;\n'
        lines $(($3 - 2)) '    int (*a)(int, int); /* one; each, */'
        printf '    int z;\n\n    /* the second ones */\n'
        lines "$3" '    int b;'
        echo '};'
    )
}

large_tree 600 40 25
expect_of "scripts/sizes.py $root" "as large as may be" 0
large_tree 601 41 26
expect_of "scripts/sizes.py $root" "one more of each" 1 \
    "core/base/file.c: a file of 601 lines, at most 600" \
    "core/base/function.c:3: counts: a function of 41 lines, at most 40" \
    "core/base/struct.h:1: wide: a struct of 26 fields in a row, at most 25"

large_tree 10 10 25
file core/CEILINGS <<'END'
# A sentence that begins so says nothing.

117 lines of code in all
3   files in core
3   files in a directory
52  fields in a struct, with those of structs within
END
expect_of "scripts/sizes.py $root" "as large as its ceilings" 0
file core/base/more.h <<<'struct wider {
    struct { int a, b; } c[2];
    int (*d)(int, int);'"$(lines 51 '    int e;')"'
    const char *text; /* with this " as well */
};'
expect_of "scripts/sizes.py $root" "past its ceilings" 1 \
    "172 lines of code in all, at most 117 (core/CEILINGS)" "4 files in core, at most 3 (core/CEILINGS)" \
    "4 files in a directory, at most 3 (core/CEILINGS)" \
    "56 fields in a struct, with those of structs within, at most 52 (core/CEILINGS)"
file core/CEILINGS <<<'many lines of code in all'
expect_of "scripts/sizes.py $root" "a ceiling that is no number" 1 \
    "core/CEILINGS:1: must be a number and one of: lines of code in all; files in core; files in a directory; fields in a struct, with those of structs within"
exit $failed
