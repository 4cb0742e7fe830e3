#!/usr/bin/env bash
# Mutations: each edit is found by its function and its statement, wherever they stand and however they
# are formatted; one that does not apply, or that says something wrong of itself, is named together with
# what is wrong. Those that a change may have disturbed are chosen, and what is run is told. On a tree of
# a few sources, with programs that only look like tests.
set -u
cd "$(dirname "$0")/../.." || exit 2
if ! command -v python3 >/dev/null; then
    echo "skip mutations: there is no python3"
    exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/core/base" "$work/shim" "$work/tests/mutations" "$work/tests/unit/base"
cp tests/mutations/{apply.py,source.py,choose.py,run.sh} "$work/tests/mutations"
entries=$work/tests/mutations/1_entries.mutations
copy=$work/copy
cat >"$work/core/base/ready.c" <<'C'
#define LIMIT 3
int ready(int a);
static const int sizes[] = {1, 2};

static void settle(int *a)
{
    *a += 1;
}

int ready(int a)
{
    if (a) /* sure */
        return 1;

    a++;
    settle(&a);
    a++;
    return 0;
}
C
cat >"$work/shim/other.c" <<'C'
struct ready {
    int other;
};

static void settle(int *a)
{
    *a += 1;
    *a += LIMIT;
}

HOOK(cuInit, (unsigned int flags))
{
    return flags;
}
C

# shellcheck source=tests/e2e/equal_lib.sh
. tests/e2e/equal_lib.sh

entry() { # name: an entry whose edits come from stdin
    printf 'mutation %s\ncheck    unit a\n         b\nrule     a rule\nwhat     breaks it\n' "$1"
    cat
}

# What is said of entries from stdin, without the advice in the last line.
said() {
    cat >"$entries"
    "$work/tests/mutations/apply.py" "${1:-check}" ${2+"$2"} 2>&1 | grep -v '^the mutations do not apply'
}

# A function of the copy that is made with entries from stdin, in one line.
made() { # function file
    rm -rf "$copy"
    said copy "$copy"
    sed -n "/^[^ ;]*.*\b$1(.*[^;]\$/,/^}/p" "$copy/$2" | tr -s '\n ' ' ' | sed 's/ $//'
}

one='edit     ready
-    if (a)
+    if (a && !MUTATED(one))'
two='edit     ready
     settle(&a);
+    if (MUTATED(two))
+        a = 2;'

# --- edits that apply ---

check "edits that apply" "" "$({ entry one <<<"$one"; echo; entry two <<<"$two"; } | said copy "$copy")"
check "the copy has them all" \
    'int ready(int a) { if (a && !MUTATED(one)) /* sure */ return 1; a++; settle(&a); if (MUTATED(two)) a = 2; a++; return 0; }' \
    "$({ entry one <<<"$one"; entry two <<<"$two"; } | made ready core/base/ready.c)"
check "and the header of conditions" '#include "tests/mutations/mutation.h"' "$(head -n 1 "$copy/core/base/ready.c")"
check "a file without edits is as it is" "$(cat "$work/shim/other.c")" "$(cat "$copy/shim/other.c")"
check "the names are listed for the header" "MUTATION(one) MUTATION(two)" \
    "$(tr '\n' ' ' <"$copy/mutation_names.def" | sed 's/ $//')"
check "a field goes on in the next line" "one|unit a b|a rule|breaks it" \
    "$(entry one <<<"$one" | said list)"

check "white space, line breaks and comments are no part of a statement" \
    'int ready(int a) { if (MUTATED(one)) return 2; a++; settle(&a); a++; return 0; }' \
    "$(entry one <<<'edit     ready
-  if(a)   // whatever
-  return
-         1;
+    if (MUTATED(one))
+        return 2;' | made ready core/base/ready.c)"
check "what comes first in a function stands behind its brace" \
    'int ready(int a) { if (MUTATED(one)) return 2; if (a) /* sure */' \
    "$(entry one <<<'edit     ready
 {
+    if (MUTATED(one))
+        return 2;' | made ready core/base/ready.c | grep -o '^.*sure \*/')"
check "what comes last, before it" 'a++; return 0; MUTATED(one); }' \
    "$(entry one <<<'edit     ready
+    MUTATED(one);
 }' | made ready core/base/ready.c | grep -o 'a++; return 0.*')"
check "a function may come before another" \
    'static int first(void) { return MUTATED(one); } int ready(int a) { if (a && first())' \
    "$(entry one <<<'edit     ready
+static int first(void)
+{
+    return MUTATED(one);
+}
 int ready(int a)
 {
-    if (a)
+    if (a && first())' | made '\(first\|ready\)' core/base/ready.c | grep -o '^static.*first())')"
check "an edit may have several changes" 'a++; MUTATED(one); settle(&a); return 0; }' \
    "$(entry one <<<'edit     ready
+    MUTATED(one);
     settle(&a);
-    a++;' | made ready core/base/ready.c | grep -o 'a++;.*')"
check "and stand in several places, if it says so" \
    'return 1; a += MUTATED(one); settle(&a); a += MUTATED(one); return 0; }' \
    "$(entry one <<<'edit     ready, 2 places
-    a++;
+    a += MUTATED(one);' | made ready core/base/ready.c | grep -o 'return 1.*')"
check "an empty line between what comes makes no two changes of it" "a++; MUTATED(one); a--; settle(&a);" \
    "$(entry one <<<'edit     ready
+    MUTATED(one);

+    a--;
     settle(&a);' | made ready core/base/ready.c | grep -o 'a++; M.*&a);')"
entry one <<<'edit     LIMIT
-3
+(MUTATED(one) ? 4
+3)' | said copy "$copy"
check "a macro stays one, however many lines it gets" "#define LIMIT (MUTATED(one) ? 4 \\" \
    "$(grep LIMIT "$copy/core/base/ready.c")"
entry one <<<'edit     sizes
-{1, 2}
+{1, MUTATED(one)}' | said copy "$copy"
check "an object at file scope" "sizes[] = {1, MUTATED(one)} ;" \
    "$(tr -s '\n ' ' ' <"$copy/core/base/ready.c" | grep -o 'sizes.*} ;')"
check "a function that a macro defines has the name that it gives" \
    'HOOK(cuInit, (unsigned int flags)) { return MUTATED(one); }' \
    "$(entry one <<<'edit     cuInit
-    return flags;
+    return MUTATED(one);' | made HOOK shim/other.c)"
check "of functions with one name it is the one with the statement" "settle *a += MUTATED(one);" \
    "$(entry one <<<'edit     settle
-    *a += LIMIT;
+    *a += MUTATED(one);' | made settle shim/other.c | grep -o 'settle\|\*a += M.*;' | tr '\n' ' ' | sed 's/ $//')"
check "or the one in the file that it names" "" "$(entry one <<<'edit     ready.c:settle
-    *a += 1;
+    *a += MUTATED(one);' | said)"
check "or in the directory" "*a += MUTATED(one); *a += LIMIT; }" "$(entry one <<<'edit     shim:settle
-    *a += 1;
+    *a += MUTATED(one);' | made settle shim/other.c | grep -o '\*a +=.*')"

# --- what moves ---

sed -i 's/^int ready(int a)$/int early;\n\n&/; s/^    if (a)/    while (early)\n        a--;\n&/' "$work/core/base/ready.c"
check "lines that move cost nothing" "" "$({ entry one <<<"$one"; entry two <<<"$two"; } | said)"
mv "$work/core/base/ready.c" "$work/shim/moved.c"
check "nor do functions that move to another file" "one|shim/moved.c two|shim/moved.c" \
    "$({ entry one <<<"$one"; entry two <<<"$two"; } | said files | tr '\n' ' ' | sed 's/ $//')"
mv "$work/shim/moved.c" "$work/core/base/ready.c"
check "the files are those of all edits that a mutation is in" "one|core/base/ready.c two|core/base/ready.c" \
    "$({ entry one <<<"${one/MUTATED(one)/MUTATED(one) && !MUTATED(two)}"; entry two <<<"with     one"; } |
        said files | tr '\n' ' ' | sed 's/ $//')"

# --- the copy ---

made ready core/base/ready.c >/dev/null <<<"$(entry one <<<"$one"; entry two <<<"$two")"
touch -d '2001-01-01' "$copy/core/base/ready.c" "$copy/shim/other.c"
echo "int more;" >>"$work/shim/other.c"
: >"$copy/shim/former.c"
{ entry one <<<"$one"; entry two <<<"$two"; } | said copy "$copy"
check "what is the same keeps its time" 2001 "$(date -r "$copy/core/base/ready.c" +%Y)"
check "what has changed comes again" "int more;" "$(tail -n 1 "$copy/shim/other.c")"
check "what has gone goes" "" "$(ls "$copy/shim/former.c" 2>/dev/null)"
mkdir "$work/mine"
: >"$work/mine/diary"
check "what is no copy is left alone" \
    "$work/mine: there is something there that is not a copy of the sources; diary" \
    "$(entry one <<<"$one" | said copy "$work/mine"); $(ls "$work/mine")"

# --- what is wrong ---

here=tests/mutations/1_entries.mutations
ready=core/base/ready.c
check "a text that stands nowhere, and one like it" \
    "$here:6: one: in ready ($ready:12) this stands nowhere, and must once; 'if (a) /* sure */' at $ready:16 is near it:
        if (b)" \
    "$(entry one <<<"${one/(a)/(b)}" | said)"
check "a text that nothing is like" "$here:6: one: in ready ($ready:12) this stands nowhere, and must once:
        settle(b, c)" \
    "$(entry one <<<"${one/if (a)/settle(b, c)}" | said)"
check "a text that stands in another function" \
    "$here:6: one: in ready ($ready:12) this stands nowhere, and must once; its text stands in settle (shim/other.c:8):
        *a += LIMIT;" \
    "$(entry one <<<"${one/if (a)/*a += LIMIT;}" | said)"
check "a text that stands twice" \
    "$here:6: one: in ready ($ready:12) this stands 2 times ($ready:19, $ready:21), and must once:
        a++;" \
    "$(entry one <<<"${one/if (a)/a++;}" | said)"
check "a text that stands in fewer places than it says" \
    "$here:6: one: in ready ($ready:12) this stands once ($ready:16), and must 3 times:
        if (a)" \
    "$(entry one <<<"${one/ready/ready, 3 places}" | said)"
check "a function that is not there, its text, and one with a name like it" \
    "$here:6: one: no raedy is defined in core or shim; there is ready; its text stands in ready ($ready:16)" \
    "$(entry one <<<"${one/ready/raedy}" | said)"
check "a function that is not in that file" \
    "$here:6: one: no settle is defined in early.c; it is at $ready:5 and shim/other.c:5" \
    "$(entry one <<<"${one/ready/early.c:settle}" | said)"
check "functions with one name and the same text" \
    "$here:6: one: in settle ($ready:5 and shim/other.c:5) this stands 2 times ($ready:7, shim/other.c:7), and must once; FILE:settle says which:
        *a += 1;" \
    "$(entry one <<<"edit     settle
-    *a += 1;
+    MUTATED(one);" | said)"
check "these are not several places of one" \
    "$here:6: one: in settle ($ready:5 and shim/other.c:5) this stands 2 times ($ready:7, shim/other.c:7), and must 2 times; FILE:settle says which:
        *a += 1;" \
    "$(entry one <<<"edit     settle, 2 places
-    *a += 1;
+    MUTATED(one);" | said)"
check "what is declared there is not defined" "$here:6: one: no early is defined in core or shim" \
    "$(sed -i '/^int early;$/d; s/^int ready(int a);$/extern int early(void);/' "$work/$ready"
        entry one <<<"edit     early
-int
+MUTATED(one)" | said | sed 's/;.*//')"
check "a file in place of a function" \
    "$here:6: one: an edit is of FUNCTION, FILE:FUNCTION or FUNCTION, 2 places" \
    "$(entry one <<<"${one/ready/core/base/ready.c}" | said)"
check "an edit that adds, beside nothing" "$here:6: one: an edit has text that stands there, and changes" \
    "$(entry one <<<"edit     ready
+    MUTATED(one);" | said)"
check "an edit that changes nothing" "$here:9: one: an edit has text that stands there, and changes" \
    "$(entry one <<<"$one
edit     ready
     settle(&a);" | said)"
check "edits of the same text" \
    "$here:14: two: in ready this changes the same text as the edit at $here:6; write them as one, and 'with one' here" \
    "$({ entry one <<<"$one"; entry two <<<"edit     ready
-(a) return 1
+(MUTATED(two)) return 1"; } | said)"
check "edits that add in the same place" \
    "$here:15: two: in ready this changes the same text as the edit at $here:6; write them as one, and 'with one' here" \
    "$({ entry one <<<"${two/two/one}"; entry two <<<"${two}"; } | said)"
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
sed -i '/^int hook/d' "$work/shim/other.c"
mkdir "$work/others" && entry other <<<"${one/one/other}" >"$work/others/others.mutations"
check "entries of another directory" "other|unit a b|a rule|breaks it" \
    "$("$work/tests/mutations/apply.py" list "$work/others")"
"$work/tests/mutations/apply.py" copy 2>/dev/null
check "and 2 for wrong usage" 2 $?

# --- what a change may have disturbed ---

mkdir -p "$work/tests/e2e" "$work/tests/random"
for file in tests/unit/base/test_first.c tests/unit/base/test_second.c tests/e2e/mempools.c tests/random/run.c \
    core/base/away.c; do
    echo 'int nothing;' >"$work/$file"
done
printf 'int away(void)\n{\n    return 0;\n}\n' >"$work/core/base/away.c"
{
    entry one <<<"$one"
    entry two <<<"$two"
    entry three <<<'edit     away
-0
+MUTATED(three) + MUTATED(four) + MUTATED(five)'
    entry four <<<'with     three'
    entry five <<<'with     three'
} >"$entries"
sed -i '/^         b/d; /^mutation one/,/check/s/unit.*/unit first a/; /^mutation two/,/check/s/unit.*/hangs unit second b/
    /^mutation three/,/check/s/unit.*/random/; /^mutation four/,/check/s/unit.*/program mempools left {}/
    /^mutation five/,/check/s/unit.*/bypassed/' "$entries"
repository=(git -C "$work" -c user.name=nobody -c user.email=nobody)
"${repository[@]}" init -q
"${repository[@]}" add -A
"${repository[@]}" commit -qm first
commit=$("${repository[@]}" rev-parse HEAD)

chosen() { # arguments
    "$work/tests/mutations/choose.py" "$@" 2>"$work/.git/told" | tr '\n' ' ' | sed 's/ $//'
    "${repository[@]}" stash -qu 2>/dev/null
    "${repository[@]}" stash drop -q 2>/dev/null
}
change() { # file
    echo '/* a change */' >>"$work/$1"
}

check "nothing has changed" "" "$(chosen --changed-since "$commit")"
check "and it is told how many" "mutations: 0 changed since $commit" "$(cat "$work/.git/told")"
check "a file that an edit is in" "one two" "$(change core/base/ready.c; chosen --changed-since "$commit")"
check "also where the edit is another one's" "three four five" \
    "$(change core/base/away.c; chosen --changed-since "$commit")"
check "a unit test" "one" "$(change tests/unit/base/test_first.c; chosen --changed-since "$commit")"
check "a unit test that may hang" "two" "$(change tests/unit/base/test_second.c; chosen --changed-since "$commit")"
check "a program" "four" "$(change tests/e2e/mempools.c; chosen --changed-since "$commit")"
check "a program that a function of the runner names, and is new" "five" \
    "$(change tests/e2e/interposition_deepbind.c; chosen --changed-since "$commit")"
check "random programs" "three" "$(change tests/random/run.c; chosen --changed-since "$commit")"
check "a check in the runner" "five" \
    "$(sed -i '/^bypassed()/a true' "$work/tests/mutations/run.sh"; chosen --changed-since "$commit")"
check "what that calls" "three" \
    "$(sed -i '/^random_seeds()/a true' "$work/tests/mutations/run.sh"; chosen --changed-since "$commit")"
check "an entry" "four" "$(sed -i '/^mutation four/a rule another' "$entries"; chosen --changed-since "$commit")"
check "another file" "" "$(change shim/other.c; chosen --changed-since "$commit")"

check "what was proven is named by a file" "one two" \
    "$(echo "$commit" >"$work/tests/PROVEN"; change core/base/ready.c; chosen --changed-since PROVEN)"
check "without it all have changed" "one two three four five; there is no tests/PROVEN" \
    "$(chosen --changed-since PROVEN); $(sed 's/.*: //' "$work/.git/told")"
check "and where the commit is none of this clone's" "one two three four five; this clone has no commit ${commit//?/0}" \
    "$(chosen --changed-since "${commit//?/0}"); $(sed 's/.*: //' "$work/.git/told")"
change tests/random/run.c
"${repository[@]}" commit -qam second
git clone -q --depth=1 "file://$work" "$work/shallow"
check "a shallow clone gets the commit that it lacks" "three" \
    "$("$work/shallow/tests/mutations/choose.py" --changed-since "$commit" 2>/dev/null)"
rm -rf "$work/shallow/.git"
check "where there is no repository all have changed" 5 \
    "$("$work/shallow/tests/mutations/choose.py" --changed-since "$commit" 2>/dev/null | wc -l)"
rm -rf "$work/shallow"

{
    echo 'mutation other_0
check random
edit away
-0'
    seq -f '+MUTATED(other_%g) +' 0 400
    echo '+0'
    seq -f 'mutation other_%g
check random
with other_0' 400
} >"$entries"
"${repository[@]}" commit -qam third
first=$(chosen --tenth 1 | tr ' ' '\n')
check "of the others about a tenth" 1 "$(($(wc -l <<<"$first") > 15 && $(wc -l <<<"$first") < 80))"
check "the same ones by the same seed" "$first" "$(chosen --tenth 1 | tr ' ' '\n')"
check "and others by another" 1 "$([ "$first" != "$(chosen --tenth 2 | tr ' ' '\n')" ] && echo 1)"
"$work/tests/mutations/choose.py" 2>/dev/null
check "without a word of which, none are chosen" 2 $?
check "what has changed is not drawn again" \
    "mutations: 401 changed since nothing: this clone has no commit nothing, and 0 of the other 0 by the seed 1" \
    "$(chosen --changed-since nothing --tenth 1 >/dev/null; cat "$work/.git/told")"

# --- what is run ---

# Tests that are scripts, and say what Criterion says.
build=$work/build
mkdir -p "$build/tests/unit/base" "$build/tests/random"
cat >"$build/tests/unit/base/test_first" <<'C'
#!/bin/sh
echo "$CUDAPOOL_MUTATION $2" >>"$LOG"
case $CUDAPOOL_MUTATION,$2 in
none,*broken* | one,*) echo "Assertion failed"; echo "Synthesis: Tested: 1 | Passing: 0 |"; exit 1 ;;
none,*\|*) echo "Synthesis: Tested: 2 | Passing: 2 |" ;;
*) echo "Synthesis: Tested: 1 | Passing: 1 |" ;;
esac
C
cat >"$build/tests/random/random" <<'C'
#!/bin/sh
echo "$CUDAPOOL_MUTATION $1" >>"$LOG"
echo "operations tried: 12 in all"
[ "$CUDAPOOL_MUTATION" = none ] || { echo "FAIL seed=7 program=3 after 5 steps: a word is wrong"; exit 1; }
C
chmod +x "$build"/tests/*/*/test_first "$build/tests/random/random"
{
    entry one <<<"$one"
    entry two <<<"$two"
    entry three <<<'edit     away
-0
+MUTATED(three) + MUTATED(four)'
    entry four <<<'with     three'
} >"$entries"
sed -i '/^         b/d; /^mutation one/,/check/s/unit.*/hangs unit first a/; /^mutation two/,/check/s/unit.*/unit first b/
    /^mutation three/,/check/s/unit.*/random/; /^mutation four/,/check/s/unit.*/figures_on_a_full_disk/' "$entries"
cp tests/mutations/table_head.md "$work/tests/mutations"
echo "| a rule | \`four\`: breaks it | \`figures_on_a_full_disk\` | the program | 1 case |" \
    >"$work/tests/mutations/TABLE.md"

ran() { # arguments
    : >"$work/log"
    LOG=$work/log BUILD=$build MUTATIONS=$build "$work/tests/mutations/run.sh" "$@" 2>&1
}
check "each mutation is told, and how many there were" "ok one: hangs unit first a fails: Assertion failed Synthesis: Tested: 1 / Passing: 0 / 
2 passed, 1 failed, 0 skipped
ok three: random fails after 12 operations: seed 7: a word is wrong
FAIL two is not caught: unit first b passes: " "$(ran table one two three | LC_ALL=C sort -k 2 | sed 's/ |$//')"
check "tests of one program are made in one go without a mutation" "none first/@(a|b)" \
    "$(grep '^none first' "$work/log")"
check "random programs with the seed that has differed" "none seeds=7-7" "$(grep '^none seeds' "$work/log")"
check "which may begin at the one that is known" "three seeds=300-2000 none seeds=7-7" \
    "$(sed -i 's/random$/random from 300/' "$entries"; ran three >/dev/null; grep seeds "$work/log" | tr '\n' ' ' | sed 's/ $//')"
# shellcheck disable=SC2016 # no shell's backquotes
check "what was caught gets a row, and what did not run keeps its own" "one three four" \
    "$(sed -n 's/^| a rule | `\([a-z]*\)`.*/\1/p' "$work/tests/mutations/TABLE.md" | tr '\n' ' ' | sed 's/ $//')"
sed -i 's/unit first b/unit first broken/' "$entries"
check "a check that fails without its mutation is no use" "FAIL two: without it, unit first broken fails: Ass" \
    "$(ran two | grep '^FAIL two' | cut -c 1-50)"
check "what cannot be made here is skipped" \
    "skip four: figures_on_a_full_disk cannot be made here; 0 passed, 0 failed, 1 skipped" \
    "$(mkdir "$work/bin"; printf '#!/bin/sh\nexit 1\n' >"$work/bin/mount"; chmod +x "$work/bin/mount"
        PATH=$work/bin:$PATH ran four | tr '\n' ';' | sed 's/;$//; s/;/; /g')"
check "and fails nothing" 0 $?
ran nobody >/dev/null
check "a mutation that is none is wrong usage" 2 $?
exit $failed
