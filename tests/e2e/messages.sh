#!/usr/bin/env bash
# What the command says: of misspelt words, of JSON that is none, of numbers at their limits, of disks that
# are full, and of names that hold what nobody should see.
# shellcheck source=tests/e2e/interposition_lib.sh disable=SC2317
. "$(dirname "$0")/interposition_lib.sh"

if [ -n "${RUN_WITH:-}" ]; then
    skip messages "the command is for another processor"
    exit 0
fi
cudapool=$BUILD/cudapool
export LD_LIBRARY_PATH=$SIM
unset CUDAPOOL_FIGURES CUDAPOOL_REPORT CUDAPOOL_CONFIG LD_PRELOAD NO_COLOR

# says NAME STATUS EXPRESSION COMMAND...: one line on stderr, which the expression fits.
says() {
    local name=$1 status=$2 expression=$3 got
    shift 3
    "$@" >"$work/out" 2>"$work/err" </dev/null
    got=$?
    if [ $got -ne "$status" ]; then
        fail "$name" "exit status $got, not $status: $(cat "$work/err")"
    elif ! grep -Eq -- "$expression" "$work/err" || [ "$(wc -l <"$work/err")" -ne 1 ]; then
        fail "$name" "stderr: $(cat "$work/err")"
    else
        ok "$name"
    fi
}

# --- misspelt words -----------------------------------------------------------------------------------------

says "a command" 2 'unknown command "repotr"; allowed are .*; did you mean report\?$' "$cudapool" repotr
says "for help" 2 'did you mean trim\?$' "$cudapool" help trmi
says "a command that is like none" 2 'configs and help$' "$cudapool" bench
for misspelt in 'run --confg=x true:config' 'run --reprot x true:report' 'report --fromat csv x:format' 'report --compaer x y:compare' \
    'top --intervall 1:interval' 'top --shrt x:sort' 'trim --al1:all' 'trim --devcie 1:device' 'check --al1 x:all' \
    'try --jsno x:json' 'try --warm-pu 1 true:warm-up'; do
    # shellcheck disable=SC2086 # words
    says "cudapool ${misspelt%:*}" 2 "unknown option --[a-z1-]*(=x)?; allowed .*; did you mean --${misspelt##*:}\\?\$" \
        "$cudapool" ${misspelt%:*}
done
says "an option that is like none" 2 'unknown option --zzz; .* --all$' "$cudapool" run --zzz true
for misspelt in low-memroy:low-memory lowmemory:low-memory strikt:strict troughput:throughput defualt:default; do
    says "--config ${misspelt%:*}" 2 "^cudapool: ${misspelt%:*}: cannot be opened: No such file or directory; did you mean ${misspelt#*:}\\?\$" \
        "$cudapool" run --config "${misspelt%:*}" true
    says "check ${misspelt%:*}" 2 "did you mean ${misspelt#*:}\\?\$" "$cudapool" check "${misspelt%:*}"
    says "configs ${misspelt%:*}" 2 "did you mean ${misspelt#*:}\\?\$" "$cudapool" configs "${misspelt%:*}"
done
says "a program is told as well" 0 '^cudapool: .*strikt: cannot be opened: .*; did you mean strict\?; the program runs without the pool$' \
    run_with "LD_PRELOAD=$PRELOAD" CUDAPOOL_CONFIG=strikt -- "$programs/outputs" device=1
retired=stream_ordered.reuse.follow_event_dependencies
says "a retired setting" 0 "^cudapool: .*$retired: has no effect any more; the next version refuses it\$" \
    run_with "LD_PRELOAD=$PRELOAD" "CUDAPOOL_REPORT=$work/retired.json" \
    'CUDAPOOL_CONFIG={"stream_ordered": {"reuse": {"follow_event_dependencies": true}}}' \
    -- "$programs/outputs" device=1
expect "and the pool serves" grep -q '"requests": 1' "$work/retired.json"
says "another one" 0 '^cudapool: .*stream_ordered.unserved_release_threshold: has no effect any more; the next version refuses it$' \
    run_with "LD_PRELOAD=$PRELOAD" CUDAPOOL_REPORT=none 'CUDAPOOL_CONFIG={"stream_ordered": {"unserved_release_threshold": "1GiB"}}' \
    -- "$programs/outputs" device=1
echo '{"stream_ordered": {"reuse": {"follow_event_dependencies": true}}}' >"$work/retired.settings"
# shellcheck disable=SC2016 # the shell that is run expands it
"$cudapool" run --config "$work/retired.settings" sh -c '"$0" device=1; "$0" device=1' "$programs/outputs" >/dev/null 2>"$work/err"
expect "is told once for all processes" test "$(grep -c "$retired" "$work/err")" -eq 1
says "a file is no name" 2 'my/settings.json: cannot be opened: No such file or directory$' "$cudapool" check my/settings.json
expect "-V is the version" test "$("$cudapool" -V)" = "$("$cudapool" --version)"

# --- JSON that is none -------------------------------------------------------------------------------------------

bad_json() { # name, text, line and column, what
    printf '%b' "$2" >"$work/bad.json"
    says "$1" 2 "^cudapool: $work/bad\\.json: line $3: $4\$" "$cudapool" check "$work/bad.json"
    says "$1, in run" 2 "bad\\.json: line $3: $4\$" "$cudapool" run --config "$work/bad.json" true
}
comma='a comma after the last element, which JSON does not allow'
comment='a comment, which JSON does not have'
bad_json "a comma at the end of an object" '{\n  "device": {"enabled": true,}\n}' "2, column 29" "$comma"
bad_json "and on the next line" '{"device": {\n "enabled": true,\n }}' "2, column 17" "$comma"
bad_json "a comma at the end of an array" '{"device": [1, 2, ]}' "1, column 17" "$comma"
bad_json "a comment of two slashes" '{\n  // the pool\n  "device": {}}' "2, column 3" "$comment"
bad_json "a comment between stars" '{"device": /* all */ {}}' "1, column 12" "$comment"
bad_json "a comment of a shell" '# settings\n{}' "1, column 1" "$comment"
bad_json "a byte order mark" '\xef\xbb\xbf{"device": {}}' "1, column 1" "a byte order mark, which JSON does not allow"
bad_json "another error that comes first" '{"device": tru, /* it */}' "1, column 14" ".*"
expect "is not called a comment" bash -c "! grep -q comment '$work/err'"
bad_json "one in which strings look so" '{"a": "// , }", "b": ",]" "c": 1}' "1, column 29" ".*expected.*"
printf '{"limits": {"group": null}, "report": {"file": "a//b,}#"}}' >"$work/good.json"
expect "strings are no comments" "$cudapool" check "$work/good.json"

# --- numbers at their limits ---------------------------------------------------------------------------------------

# Every number of the settings, as the schema allows it.
cat >"$work/limits.py" <<'PYTHON'
import json, subprocess, sys

cudapool, schema = sys.argv[1], json.load(open(sys.argv[2], encoding="utf-8"))
bare = {"limits.group_bytes": {"limits": {"group": "g"}}, "device.segments.small": {"device": {"segments": {"large": "1GiB"}}},
        "stream_ordered.segments.small": {"stream_ordered": {"segments": {"large": "1GiB"}}},
        "host.segments.small": {"host": {"segments": {"large": "1GiB"}}}}


def settings(part, path):
    for key, value in part.get("properties", {}).items():
        if "properties" in value:
            yield from settings(value, path + [key])
        else:
            yield path + [key], value


def document(path, value):
    whole = json.loads(json.dumps(bare.get(".".join(path), {})))
    place = whole
    for key in path[:-1]:
        place = place.setdefault(key, {})
    place[path[-1]] = value
    return json.dumps(whole)


def read(path, value):
    base = ["--set=" + ".".join([group, *keys]) for group, keys in ()]
    for group, part in bare.get(".".join(path), {}).items():
        for key, inner in part.items():
            base.append(f"--set={group}.{key}={inner}" if not isinstance(inner, dict) else
                        f"--set={group}.{key}.{next(iter(inner))}={next(iter(inner.values()))}")
    one = subprocess.run([cudapool, "check", "-"], input=document(path, value), text=True, capture_output=True, check=False)
    two = subprocess.run([cudapool, "run", "--report", "none", *base, f"--set={'.'.join(path)}={value}", "true"],
                         capture_output=True, check=False)
    return one.returncode, two.returncode


count = 0
for path, value in settings(schema, []):
    for kind in value.get("anyOf", value.get("oneOf", [value])):
        step = 2097152 if "segments" in path else 1
        for bound, outside in (("minimum", -step), ("maximum", step)):
            if bound not in kind or kind["type"] not in ("integer", "number") or path == ["version"]:
                continue
            count += 1
            if read(path, kind[bound]) != (0, 0):
                print(f"FAIL {'.'.join(path)} = {kind[bound]} is refused: {read(path, kind[bound])}")
            if read(path, kind[bound] + outside) != (2, 2):
                print(f"FAIL {'.'.join(path)} = {kind[bound] + outside} is read: {read(path, kind[bound] + outside)}")
print(f"{count} bounds")
PYTHON
if command -v python3 >/dev/null; then
    python3 "$work/limits.py" "$cudapool" "$here/configs/cudapool.schema.json" >"$work/limits" 2>&1
    if ! grep -q '^FAIL\|Error' "$work/limits" && grep -qE '^[3-9][0-9] bounds$' "$work/limits"; then
        ok "numbers are read up to their bounds, and no further"
    else
        fail "numbers are read up to their bounds, and no further" "$(head -n 3 "$work/limits" | tr '\n' ' ')"
    fi
else
    skip "numbers are read up to their bounds" "there is no python3"
fi
read_as() { # value, how check shows it
    "$cudapool" run --set "device.growth_budget=$1" --report none true &&
        printf '{"device": {"growth_budget": "%s"}}' "$1" | "$cudapool" check - | tee "$work/out" | grep -qF "$2"
}
for number in '1024TiB:1024 TiB' '1125899906842624B:1024 TiB' '0000000000000000000001024TiB:1024 TiB' '1024.00000000000000000000TiB:1024 TiB' \
    '33.333333333333336%:33.333333333333336%' '33.33333333333333333333333333333333%:33.33333333333333' '100.000000000000000000000%:100%' \
    '0.1%:0.1%' '0.5KiB:0.5KiB'; do
    expect "${number%%:*}" read_as "${number%%:*}" "${number#*:}"
done
for number in 1024.1TiB 100.00000000000000001% 1024.00000000000000000001TiB 0.3B 1125899906842625B 1025TiB; do
    says "${number} is too much, or no whole number" 2 "found \"$number\", allowed is" "$cudapool" run --set "device.growth_budget=$number" true
done

# --- full disks -------------------------------------------------------------------------------------------------------

"$cudapool" run --report "$work/some.json" "$programs/outputs" sizes=20 2>/dev/null
"$cudapool" run --report "$work/same.json" "$programs/outputs" sizes=20 2>/dev/null
to_full() {
    timeout -k 5 "$seconds" "$@" >/dev/full
}
for format in table json csv html prometheus trace; do
    says "report --format $format to a full disk" 1 '^cudapool: the output cannot be written: No space left on device$' \
        to_full "$cudapool" report --format $format "$work/some.json"
    says "of many" 1 '^cudapool: the output cannot be written: No space left on device$' \
        to_full "$cudapool" report --format $format "$work/some.json" "$work/same.json"
done
says "report --compare" 1 'No space left on device$' to_full "$cudapool" report --compare "$work/some.json" "$work/some.json"
for command in 'check --all default' 'configs schema' 'configs' 'help' 'help report' '--version'; do
    # shellcheck disable=SC2086 # words
    says "$command" 1 'cannot be written: No space left on device$' to_full "$cudapool" $command
done
says "report -o" 1 '^cudapool: /dev/full: cannot be written: No space left on device$' "$cudapool" report --format csv -o /dev/full "$work/some.json"

# --- comparisons ----------------------------------------------------------------------------------------------------------

"$cudapool" run --report "$work/other.json" "$programs/outputs" device=20 2>/dev/null
differ='A and B ran different commands'
expect "runs of two commands are said to be" bash -c "'$cudapool' report --compare '$work/some.json' '$work/other.json' | grep -q '^$differ'"
expect "on the page as well" bash -c "'$cudapool' report --format html --compare '$work/some.json' '$work/other.json' | grep -q '$differ'"
expect "and in JSON" bash -c "'$cudapool' report --format json --compare '$work/some.json' '$work/other.json' | grep -q '\"commands_differ\": true'"
expect "those of one command are not" bash -c "! '$cudapool' report --compare '$work/some.json' '$work/same.json' | grep '$differ'"
expect "nor in JSON" bash -c "'$cudapool' report --format json --compare '$work/some.json' '$work/same.json' | grep -q '\"commands_differ\": false'"

# --- names ------------------------------------------------------------------------------------------------------------------

# C0, C1, all of Bidi_Control, characters of no width, an end of a line, bytes that are no UTF-8; and letters
# that stay.
name=$(printf 'a\033[2J\x7f\xc2\x9b1m\xd8\x9c\xe2\x80\x8e\xe2\x80\x8f\xe2\x80\xaa\xe2\x80\xab\xe2\x80\xac\xe2\x80\xad\xe2\x80\xae')
name+=$(printf '\xe2\x81\xa6\xe2\x81\xa7\xe2\x81\xa8\xe2\x81\xa9\xe2\x80\x8b\xe2\x80\x8c\xe2\x80\x8d\xe2\x81\xa0\xef\xbb\xbf\xe2\x80\xa8\xffz')
# Whatever of these is in a file; JSON may have DEL. In bytes: no locale is known to have UTF-8.
hidden=$'\033|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0\xa6-\xa9]|\xef\xbb\xbf|\xff'
shows_all() { # expression, command...
    local expression=$1
    shift
    "$@" >"$work/shown" 2>&1
    LC_ALL=C grep -aEq "$expression" "$work/shown" || { echo "no $expression"; head -c 600 "$work/shown"; return 1; }
    ! LC_ALL=C grep -aEq "$hidden" "$work/shown" || { echo "not all is escaped: $(od -c "$work/shown" | grep -m 3 '[0-7][0-7][0-7]  *[0-9]* *[23][0-7][0-7]')"; return 1; }
}
mkdir "$work/n"
program=$work/n/p$name
cp "$programs/outputs" "$program"
escaped='a\\x1b\[2J\\x7f\\u009b1m\\u061c\\u200e\\u200f\\u202a'
expect "the table of a program of such a name" shows_all 'n/pa\\x1b' "$cudapool" run "$program" device=2
# shellcheck disable=SC2016 # expanded by the shell that is run
expect "of two of them" shows_all 'pa\\x1b' "$cudapool" run sh -c '"$0" device=1; "$0" device=2' "$program"
expect "and what the process itself prints" shows_all 'n/pa\\x1b' run_with "LD_PRELOAD=$PRELOAD" -- "$program" device=2
# Shorter names are shown whole.
cp "$programs/outputs" "$work/n/short"
short() {
    (cd "$work/n" && "$cudapool" run "$@")
}
expect "its arguments" shows_all "$escaped" short ./short device=2 "$name"
short --report "$work/names.json" ./short device=2 "$name" 2>/dev/null
expect "the report in JSON" shows_all 'a\\\\x1b\[2J\\\\x7f\\\\u009b1m\\\\u061c' cat "$work/names.json"
short --report "$work/utf8.json" ./short device=2 "${name%?z}" 2>/dev/null
expect "which of what is UTF-8 loses nothing" shows_all 'a\\u001B\[2J.?\\u009B1m\\u061C' cat "$work/utf8.json"
for format in table csv html prometheus json trace; do
    expect "report --format $format" shows_all '.' "$cudapool" report --format $format "$work/names.json"
done
expect "shows it on the page" shows_all "$escaped.*\\\\u2028\\\\xffz" "$cudapool" report --format html "$work/names.json"
"$cudapool" report --format html "$work/names.json" >"$work/page.html"
for format in table html json csv; do
    expect "report --compare --format $format" shows_all '.' "$cudapool" report --compare --format $format "$work/names.json" "$work/some.json"
done
expect "report --merge" shows_all 'short' "$cudapool" report --merge "$work/names.json" "$work/some.json"
sed "s/\"name\": \"Simulated device\"/\"name\": \"G\\\\u202eP\\\\u009bU\"/; s/\"host\": \"[^\"]*\"/\"host\": \"h\\\\u202eo\\\\u0007\"/" \
    "$work/names.json" >"$work/device.json"
for options in '' '--merge' '--format html' '--format csv' '--format prometheus'; do
    # shellcheck disable=SC2086 # words
    expect "names of devices and hosts, report $options" shows_all '\\u202e' "$cudapool" report $options "$work/device.json"
done
expect "the name of a file" shows_all 'a\\x1b.*cannot be opened' "$cudapool" report "$work/$name"
expect "of settings" shows_all 'a\\x1b.*cannot be opened' "$cudapool" check "$work/$name"
echo '{}' >"$work/$name"
expect "that are right" shows_all 'a\\x1b.*valid' "$cudapool" check "$work/$name"
printf '{"x\\u202e": 1}' >"$work/keys.json"
expect "keys" shows_all 'x\\u202e: unknown key' "$cudapool" check "$work/keys.json"
expect "values" shows_all 'found "a\\u202eb"' "$cudapool" run --set "device.evict=$(printf 'a\xe2\x80\xaeb')" true
expect "directories that settings name" shows_all 'a\\u202eb' "$cudapool" check --all - < <(printf '{"figures": {"directory": "/a\\u202eb"}}')
expect "programs that are not there" shows_all 'a\\x1b' "$cudapool" run "./$name"
expect "commands" shows_all 'unknown command "a\\x1b' "$cudapool" "$name"

# Those that are running, as top and trim see them.
export XDG_RUNTIME_DIR=$work/runtime
mkdir -m 700 "$XDG_RUNTIME_DIR"
mkfifo "$work/in"
(cd "$work/n" && exec env "LD_PRELOAD=$PRELOAD" CUDAPOOL_REPORT=none ./short device=4 wait "$name") <"$work/in" >"$work/ready" 2>/dev/null &
waiting=$!
exec 8>"$work/in"
tries=0
until grep -q ready "$work/ready" 2>/dev/null || [ $((tries += 1)) -gt 3000 ]; do sleep 0.01; done
expect "top" shows_all 'short device=4 wait a\\x1b' "$cudapool" top --count 1 "$waiting"
expect "trim" shows_all 'short device=4 wait a\\x1b' "$cudapool" trim "$waiting"
exec 8>&-
wait "$waiting"
expect "and the program has ended well" test $? -eq 0
finish
