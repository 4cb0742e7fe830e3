#!/usr/bin/env bash
# The documents: what they link is there, the chart is what the results say, what they tell of
# settings is what the declarations say, each claim has its test, and the README stays short.
set -u
cd "$(dirname "$0")/../.." || exit 2
failed=0

check() { # name, what is wrong; nothing where all is well
    if [ -z "$2" ]; then
        echo "ok $1"
    else
        echo "FAIL $1: $2"
        failed=1
    fi
}

lines=$(wc -l <README.md)
check "the README has at most 250 lines" "$([ "$lines" -le 250 ] || echo "$lines")"
if command -v python3 >/dev/null; then
    check "the chart is what RESULTS.md says" "$(scripts/results_chart.py check 2>&1)"
    check "RULES.md is what the mutations say" "$(tests/mutations/rules.py check 2>&1)"
    check "every claim of the pages and every setting has a test (tests/CLAIMS.md)" "$(tests/claims.py 2>&1)"

    anew=$(mktemp -d)
    trap 'rm -rf "$anew"' EXIT
    packaging/settings_documents.py "${BUILD:-build}/packaging/settings_schema" "$anew" 2>"$anew/error"
    made=$(cd "$anew" && find . -mindepth 2 -type f | sort)
    check "what is told of settings can be made anew" "$(cat "$anew/error")$([ -n "$made" ] || echo nothing)"
    for file in $made; do
        check "${file#./} is what settings.def says (make settings writes it)" \
            "$(diff "$file" "$anew/$file" 2>&1)"
    done
else
    echo "skip the chart, RULES.md, CLAIMS.md and what is told of settings: there is no python3"
fi
# shellcheck disable=SC2016 # backticks of Markdown
other_defaults=$(grep -oE '^\| `[a-z_.]+` \| `[^`]+` \|' README.md | while read -r row; do
    grep -qF -- "$row" configs/README.md || echo "$row"
done)
check "the README has the defaults of configs/README.md" "$other_defaults"
links() { # file: what it links in this repository, without the place in it
    grep -oE '\]\([^)#]+' "$1" | cut -c3- | grep -vE '^[a-z]+:'
}
broken=$(for file in README.md CONTRIBUTING.md docs/*.md configs/README.md tests/RULES.md; do
    links "$file" | while read -r link; do
        [ -e "$(dirname "$file")/$link" ] || echo "$file: $link"
    done
done)
check "what they link is there" "$broken"
exit $failed
