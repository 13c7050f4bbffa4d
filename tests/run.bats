#!/usr/bin/env bats
# shellcheck disable=SC2164,SC2016 # bats ends a test at the first failure; steps expand
# tests/run itself: in a tree of its own, whose steps are scripts of a line or two.

setup() {
  repository=$(cd -- "$BATS_TEST_DIRNAME/.." && pwd)
  tree=$BATS_TEST_TMPDIR/tree
  mkdir -p "$tree/tests/steps" "$tree/bin"
  cd "$tree"
  cp -- "$repository"/tests/{run,verdicts.sh} tests/
  : >tests/expected-skips
  printf '#!/bin/sh\n' >tests/packages
  chmod +x tests/packages
  cp -- tests/packages bin/unshare
  printf '#!/bin/sh\ncase $* in *target-libdir*) echo /;; esac\n' | tee bin/cargo >bin/rustc
  printf '#!/bin/sh\necho 0\n' >bin/id
  chmod +x bin/*
  export PATH=$tree/bin:$PATH XDG_CACHE_HOME=$tree/cache CARGO_TARGET_DIR=$tree/target
  unset CI
  export FLEXVOL_SLOWDOWN=1
}

# step NAME LOG SECONDS: a step of the gate, whose script is on standard input.
step() {
  { printf '#!/usr/bin/env bash\n# Step: a step\n' && cat; } >"tests/steps/$1"
  chmod +x "tests/steps/$1"
  echo "$1 gate $2 $3 ${4-}" >>tests/steps/TABLE
}

last_line() { [[ ${lines[-1]} == "$1" ]] || { echo "$output"; return 1; }; }

@test "what passes is summed up" {
  step first one 9 <<<'echo first'
  step second bats 9 <<<'printf "ok 1 a\nok 2 b\n"'
  step third cargo 9 <<<'echo "test result: ok. 3 passed; 0 failed; 0 ignored"'
  run tests/run
  [ "$status" -eq 0 ]
  last_line '6 passed, 0 failed, 0 skipped'
}

@test "a red test that passes alone is passed, and listed" {
  # Red, unless it is asked for again, by the name that failed.
  step flaky bats 9 <<'SH'
if [[ ${1-} == again ]]; then
  [[ $(cat "$2") == 'part: b' ]] && echo 'ok 1 part: b'
else
  printf 'ok 1 part: a\nnot ok 2 part: b\n' && exit 1
fi
SH
  run tests/run
  [ "$status" -eq 0 ]
  last_line '2 passed, 0 failed, 0 skipped'
  [[ $output == *'unstable: flaky: part: b'* ]]
  [ "$(cat target/tests-run/unstable)" = 'flaky: part: b' ]
}

@test "a red test of a test program is asked for by its name" {
  step flaky cargo 9 <<'SH'
[[ ${1-} != again ]] || { [[ $(cat "$2") == '/programs/kit-1 x::y' ]]; exit; }
echo '/programs/kit-1 x::y' >"$logs/flaky.red"
printf 'test x::y ... FAILED\ntest result: FAILED. 4 passed; 1 failed; 0 ignored\n'
exit 101
SH
  run tests/run
  [ "$status" -eq 0 ]
  last_line '5 passed, 0 failed, 0 skipped'
  [[ $output == *'unstable: flaky: kit-1 x::y'* ]]
}

@test "what is red twice is red" {
  step broken bats 9 <<<'printf "ok 1 a\nnot ok 2 b\n"; exit 1'
  run tests/run
  [ "$status" -eq 1 ]
  last_line '1 passed, 1 failed, 0 skipped'
}

@test "many red tests get no second chance" {
  step broken bats 9 <<'SH'
[[ ${1-} != again ]] || exit 0
for n in {1..11}; do echo "not ok $n case $n"; done
SH
  run tests/run
  [ "$status" -eq 1 ]
  last_line '0 passed, 11 failed, 0 skipped'
}

@test "a failed step that is no test gets no second chance" {
  step once one 9 <<<'[[ ${1-} == again ]]'
  run tests/run
  [ "$status" -eq 1 ]
}

@test "in CI the first red step ends the run" {
  step broken one 9 <<<'false'
  step later one 9 <<<'touch reached'
  CI=true run tests/run
  [ "$status" -eq 1 ]
  last_line '0 passed, 1 failed, 0 skipped'
  [ ! -e reached ]
  run tests/run
  [ -e reached ]
}

@test "in CI a skip that nobody expected is a failure" {
  step skips one 9 <<<'echo "SKIP odd: no moon"'
  CI=true run tests/run
  [ "$status" -eq 1 ]
  [[ $output == *'not in tests/expected-skips: odd'* ]]
  echo 'odd: where no moon is' >tests/expected-skips
  CI=true run tests/run
  [ "$status" -eq 0 ]
  last_line '0 passed, 0 failed, 1 skipped'
}

@test "what hangs is ended, and fails" {
  # A second of budget is a deadline of four.
  step hangs one 1 <<<'sleep 600'
  run tests/run
  [ "$status" -eq 1 ]
  [[ $output == *'killed after '*' s'* ]]
}

@test "a step over its budget is named" {
  step slow one 1 <<<'sleep 1.5'
  run tests/run
  [ "$status" -eq 0 ]
  [[ $output == *'over budget: slow 1 s of 1'* ]]
}

@test "steps are played after what they need, each once" {
  step first one 9 <<<'echo first >>order'
  step second one 9 first <<<'echo second >>order'
  step third one 9 first <<<'echo third >>order'
  run tests/run third second
  [ "$status" -eq 0 ]
  [ "$(paste -sd' ' order)" = 'first third second' ]
}

@test "an unknown step is named" {
  step first one 9 <<<'true'
  run tests/run frist
  [ "$status" -eq 1 ]
  [[ $output == *"unknown step 'frist'"* ]]
}

@test "a green gate of a clean tree leaves the tree's hash" {
  step first one 9 <<<'true'
  printf '/target\n/cache\n' >.gitignore
  git init -q . && git add . && git -c user.name=a -c user.email=a@example.com commit -qm a
  run tests/run
  [ "$(cat target/tests-run/green)" = "$(git rev-parse 'HEAD^{tree}')" ]
  run tests/run first
  [ ! -e target/tests-run/green ]
  echo more >./more
  run tests/run
  [ "$status" -eq 0 ]
  [ ! -e target/tests-run/green ]
}

@test "a run that ends unexpectedly says at which command" {
  step first one 9 <<<'true'
  run bash -c '
    source tests/run
    gate() { cat nothing; }
    main gate'
  [ "$status" -eq 1 ]
  [[ $output == *'tests/run: ended by line '*': cat nothing'* ]]
}

@test "old builds make room on a small disk, and what takes it is named" {
  step first one 9 <<<'true'
  mkdir -p target/debug cache/flexvol/guest-0123456789abcdef
  touch -d '3 days ago' cache/flexvol/guest-0123456789abcdef
  printf '#!/bin/sh\nprintf "Avail\\n 4000\\n"\n' >bin/df
  chmod +x bin/df
  run tests/run
  [ "$status" -eq 1 ]
  [[ $output == *'old builds are removed'*'8192 are needed'* ]]
  [ ! -e target/debug ]
  [ ! -e cache/flexvol/guest-0123456789abcdef ]
}

@test "a build of other files is removed when it was not used for a day" {
  cp -- "$repository/tests/cached" tests/
  echo one >./what && before=$(tests/cached guest what)
  echo two >./what && now=$(tests/cached guest what)
  [ -d "$before" ] && [ "$before" != "$now" ]
  touch -d '2 days ago' "$before/.used"
  [ "$(tests/cached guest what)" = "$now" ]
  [ ! -e "$before" ] && [ -d "$now" ]
}

@test "every step is in the table of CONTRIBUTING.md" {
  cd "$repository"
  while IFS= read -r row; do
    grep -qxF -- "$row" CONTRIBUTING.md || { echo "missing or different in CONTRIBUTING.md: $row"; return 1; }
  done < <(tests/run list)
  [ "$(tests/run list | sed -n 's/^| `\([^`]*\)`.*/\1/p' | sort)" = \
    "$(find tests/steps -type f -perm -u+x -printf '%f\n' | sort)" ]
}
