#!/usr/bin/env bash
# Mutations: each edit is applied where its text stands once; one that does not apply, or that says
# something wrong of itself, is named together with what is wrong. On a tree of one source.
set -u
cd "$(dirname "$0")/../.." || exit 2
if ! command -v python3 >/dev/null; then
    echo "ok mutations: left out, there is no python3"
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/core/base" "$work/shim" "$work/tests/mutations"
cp tests/mutations/apply.py "$work/tests/mutations"
entries=$work/tests/mutations/1_entries.mutations
copy=$work/copy
printf 'int ready(int a)\n{\n    if (a)\n        return 1;\n\n    a++;\n    a++;\n    return 0;\n}\n' \
    >"$work/core/base/ready.c"
printf 'int other;\n' >"$work/shim/other.c"

failed=0
check() { # name, what was wanted, what is there
    if [ "$2" = "$3" ]; then
        echo "ok $1"
    else
        echo "FAIL $1: wanted '$2', and got '$3'"
        failed=1
    fi
}

entry() { # name: an entry whose edits come from stdin
    printf 'mutation %s\ncheck    unit a\n         b\nrule     a rule\nwhat     breaks it\n' "$1"
    cat
}

# What is said of entries from stdin, without the advice in the last line.
said() {
    cat >"$entries"
    "$work/tests/mutations/apply.py" "${1:-check}" ${2+"$2"} 2>&1 | grep -v '^the mutations do not apply'
}

one='edit     core/base/ready.c
-    if (a)
+    if (a && !MUTATED(one))'
two='edit     core/base/ready.c
         return 1;

+    if (MUTATED(two))
+        a = 2;'

check "edits that apply" "" "$({ entry one <<<"$one"; echo; entry two <<<"$two"; } | said copy "$copy")"
check "the copy has them all, and the header of conditions" \
    '#include "tests/mutations/mutation.h" int ready(int a) { if (a && !MUTATED(one)) return 1; if (MUTATED(two)) a = 2; a++; a++; return 0; }' \
    "$(tr -s '\n ' ' ' <"$copy/core/base/ready.c" | sed 's/ $//')"
check "a file without edits is as it is" "int other;" "$(cat "$copy/shim/other.c")"
check "the names are listed for the header" "MUTATION(one) MUTATION(two)" \
    "$(tr '\n' ' ' <"$copy/mutation_names.def" | sed 's/ $//')"
check "a field goes on in the next line" "one|unit a b|a rule|breaks it" \
    "$(entry one <<<"$one" | said list)"

touch -d '2001-01-01' "$copy/core/base/ready.c" "$copy/shim/other.c"
echo "int more;" >>"$work/shim/other.c"
: >"$copy/shim/former.c"
{ entry one <<<"$one"; entry two <<<"$two"; } | said copy "$copy"
check "what is the same keeps its time" 2001 "$(date -r "$copy/core/base/ready.c" +%Y)"
check "what has changed comes again" "int other; int more;" \
    "$(tr '\n' ' ' <"$copy/shim/other.c" | sed 's/ $//')"
check "what has gone goes" "" "$(ls "$copy/shim/former.c" 2>/dev/null)"

mkdir "$work/mine"
: >"$work/mine/diary"
check "what is no copy is left alone" \
    "$work/mine: there is something there that is not a copy of the sources; diary" \
    "$(entry one <<<"$one" | said copy "$work/mine"); $(ls "$work/mine")"

here=tests/mutations/1_entries.mutations
check "a text that stands nowhere" \
    "$here:6: one: in core/base/ready.c this stands nowhere, and must once:
        if (b)" \
    "$(entry one <<<"${one/(a)/(b)}" | said)"
check "a text that stands twice" \
    "$here:6: one: in core/base/ready.c this stands 2 times, and must once:
        a++;" \
    "$(entry one <<<"${one/if (a)/a++;}" | said)"
check "an edit that adds, beside nothing" \
    "$here:6: one: an edit has lines that stand there, and changes" \
    "$(entry one <<<"edit     core/base/ready.c
+    MUTATED(one);" | said)"
check "a file that is not there" "$here:6: one: there is no core/base/steady.c" \
    "$(entry one <<<"${one/ready/steady}" | said)"
check "edits of the same line" \
    "$here:14: two: in core/base/ready.c this changes the same lines as the edit at $here:6; write them as one, and 'with one' here" \
    "$({ entry one <<<"$one"; entry two <<<"${one/one/two}"; } | said)"
check "one edit of two mutations" "" \
    "$({ entry one <<<"${one/MUTATED(one)/MUTATED(one) && !MUTATED(two)}"; entry two <<<"with     one"; } | said)"
check "a mutation without its condition" "$here:1: one: no edit has MUTATED(one)" \
    "$(entry one <<<"${one/!MUTATED(one)/0}" | said)"
check "a condition of no mutation's" \
    "$here:1: one has MUTATED(other), and no mutation is named so" \
    "$(entry one <<<"${one/MUTATED(one)/MUTATED(one) && MUTATED(other)}" | said)"
check "a name that is there twice" "$here:9: one is at $here:1 already" \
    "$({ entry one <<<"$one"; entry one <<<"$one"; } | said)"
check "no check" "$here:1: one has no 'check': the check that fails once the rule is broken" \
    "$(entry one <<<"$one" | sed '/^check/,/^  /d' | said)"
check "a line that is none" "$here:1: not a field (mutation, check, rule, what, with, edit): mutate one" \
    "$(echo "mutate one" | said)"
echo "int hook = MUTATED(one);" >>"$work/shim/other.c"
check "a condition in the sources" \
    "shim/other.c: MUTATED(...) stands in the sources; it belongs into an entry" \
    "$(entry one <<<"$one" | said)"
"$work/tests/mutations/apply.py" check 2>/dev/null
check "the exit status is 1" 1 $?
mkdir "$work/others" && entry other <<<"${one/one/other}" >"$work/others/others.mutations"
check "entries of another directory" "other|unit a b|a rule|breaks it" \
    "$("$work/tests/mutations/apply.py" list "$work/others")"
"$work/tests/mutations/apply.py" copy 2>/dev/null
check "and 2 for wrong usage" 2 $?
exit $failed
