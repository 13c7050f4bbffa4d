#!/usr/bin/env bash
# Drivers with one odd reply each, and what kubelet makes of it. Sourced by the chapter truth.

# What each prints for `mount`, after it has mounted. By name, as in docs/kubelet-truth.md.
# shellcheck disable=SC2016 # they are for the drivers
declare -A ODD=(
    [noise]='echo "warning: deprecated" >&2; echo "$ok"'
    [words-after]='echo "$ok"; echo "umount: no mount point" >&2'
    [two-answers]='echo "$ok"; echo "$ok"'
    [byte-order-mark]='printf "\357\273\277%s" "$ok"'
    [nul]='printf "%s\000" "$ok"'
    [small-letters]='echo "{\"status\":\"success\"}"'
    [capitals]='echo "{\"status\":\"Not Supported\"}"'
    [number]='echo "{\"status\":\"Success\",\"device\":0}"'
    [exit-1]='echo "$ok"; exit 1'
    [nothing]='exit 0'
    [killed]='kill -SEGV $$'
    [escapes]='echo "{\"status\":\"Failure\",\"message\":\"no \"x\"\"}"'
    [large]='printf "%s%70000s\n" "$ok" " "'
    [latin-1]='printf "{\"status\":\"Success\",\"message\":\"\344\"}"'
    [held]='sleep 6 & echo "$ok"'
    [hung]='umount "$2"; echo "$$" >>/run/odd.pids; exec sleep 600'
    [failure-exit-1]='umount "$2"; echo "{\"status\":\"Failure\",\"message\":\"no\"}"; exit 1'
    [leaves-mount]='echo "{\"status\":\"Failure\",\"message\":\"no\"}"'
    [leaves-file]='umount "$2"; echo x >"$2/file"; echo "{\"status\":\"Failure\",\"message\":\"no\"}"'
    [not-mounted]='umount "$2"; echo "$ok"'
    [unsupported]='umount "$2"; echo "{\"status\":\"Not supported\"}"'
)
# What each prints for `init`.
declare -A ODD_INIT=(
    [init-string]='{"status":"Success","capabilities":{"attach":"false"}}'
    [init-python]='{"status":"Success","capabilities":{"attach":False}}'
    [init-unsupported]='{"status":"Not supported"}'
    [init-list]='{"status":"Success","capabilities":["attach"]}'
    [init-silent]='{"status":"Success"}'
)

odd_drivers() {
    local name
    for name in "${!ODD[@]}"; do
        scripted node-1 "odd/$name" <<SH
#!/bin/sh
echo "\$1" >>/run/odd.$name
ok='{"status":"Success"}'
case \$1 in
init) echo '{"status":"Success","capabilities":{"attach":false}}' ;;
mount) mount -t tmpfs tmpfs "\$2" >/dev/null 2>&1; ${ODD[$name]} ;;
unmount) umount "\$2" >/dev/null 2>&1; rm -rf --one-file-system "\$2"; echo "\$ok" ;;
*) echo '{"status":"Not supported"}' ;;
esac
SH
    done
    for name in "${!ODD_INIT[@]}"; do
        printf '#!/bin/sh\n[ "$1" = init ] || exit 1\necho %q\n' "${ODD_INIT[$name]}" | scripted node-1 "odd/$name"
    done
}

odd_pods() {
    local name
    for name in "${!ODD[@]}" "${!ODD_INIT[@]}"; do pod "odd-$name" "flexVolume: {driver: odd/$name}"; done
}

# made NAME: how often it was called with `mount`.
made() { on node-1 grep -c '^mount$' "/run/odd.$1"; }

# what NAME: the state of its pod, and what kubelet said first of it.
what() {
    printf '%s: ' "$(k get pod "odd-$1" -o 'jsonpath={.status.phase}')"
    k get events --field-selector "involvedObject.name=odd-$1,reason=FailedMount" -o json |
        jq -r '.items[0].message // ""'
}
# waited NAME: whether its pod was started six seconds after it was made, and no earlier.
waited() {
    patience=20 runs "odd-$1"
    k get pod "odd-$1" -o json |
        jq '(.status.containerStatuses[0].state.running.startedAt | fromdate)
            - (.metadata.creationTimestamp | fromdate) >= 6'
}
runs_after_all() {
    patience=20 runs "odd-$1"
    what "$1"
}
refused_again() {
    eventually 20 at_least 3 "$1"
    what "$1"
}
at_least() { [[ $(made "$2") -ge $1 ]]; }
not_loaded() {
    patience=20 event "odd-$1" FailedMount >/dev/null
    what "$1"
}

# Each case is named after the one of `flexvol check` that it is the reason of.
odd_cases() {
    # The volume was mounted before the reply was found odd: the next attempt finds a mount point
    # and makes no call.
    says 'truth: output::no_noise: a warning before the answer' "Running: *invalid character 'w' looking*" \
        runs_after_all noise
    says 'truth: output::no_noise: words after the answer' "Running: *invalid character 'u' after*" \
        runs_after_all words-after
    says 'truth: output::one_object: two answers' "Running: *invalid character '{' after*" runs_after_all two-answers
    says 'truth: output::one_object: nothing' 'Running: *unexpected end of JSON input' runs_after_all nothing
    says 'truth: output::plain_text: a byte order mark' "Running: *invalid character 'ï' looking*" \
        runs_after_all byte-order-mark
    says 'truth: output::plain_text: NUL' "Running: *invalid character '\\\\x00' after*" runs_after_all nul
    says 'truth: output::status_words: success' 'Running: *status: success, reason:*' runs_after_all small-letters
    says 'truth: output::status_words: Not Supported' 'Running: *status: Not Supported, reason:*' \
        runs_after_all capitals
    says 'truth: output::types: a device that is a number' 'Running: *cannot unmarshal number*' runs_after_all number
    says 'truth: output::success_exits_zero' 'Running: *exit status 1' runs_after_all exit-1
    says 'truth: output::not_killed' 'Running: *unexpected end of JSON input' runs_after_all killed
    says 'truth: output::escapes' "Running: *invalid character 'x' after object*" runs_after_all escapes
    says 'truth: mount::failure_leaves_nothing: a mount is taken for success' 'Running: *reason: no' \
        runs_after_all leaves-mount
    says 'truth: mount::works: Success without a mount is believed' 'Running: ' runs_after_all not-mounted
    # kubelet takes these as they are.
    says 'truth: output::size: 70 KB do no harm' 'Running: ' runs_after_all large
    says 'truth: output::plain_text: what is not UTF-8 does no harm' 'Running: ' runs_after_all latin-1
    # While a process holds the output, the call has not ended.
    says 'truth: output::pipe_closed: the pod waits as long as the output is held' true waited held
    says 'truth: output::in_time: a call that hangs has no Event' 'Pending: ' what hung
    says 'truth: output::in_time: and is not made again' 1 made hung
    says 'truth: a failure is tried again' 'Pending: *reason: no' refused_again failure-exit-1
    says 'truth: output::failure_exits_zero: kubelet logs all arguments' \
        '*args: *mount */volumes/odd~failure-exit-1/v*' logged failure-exit-1
    says 'truth: mount::failure_leaves_directory: it is there for the next call' 'Pending: *reason: no' \
        refused_again leaves-file
    says 'truth: mount::failure_leaves_directory: and for the orphan' '*/file' file_left
    says 'truth: verbs::present_stay_present: Not supported, once' 'Pending: *special device*does not exist*' \
        refused_by_mount unsupported
    says 'truth: verbs::present_stay_present: and it is not called again' 1 made unsupported
    local name
    for name in string python list unsupported; do
        says "truth: init::booleans, init::capabilities, init::works: $name" 'Pending: *no volume plugin matched' \
            not_loaded "init-$name"
    done
    says 'truth: init::attach_is_meant: capabilities left out' 'Pending: *GetVolumeName*' not_loaded init-silent
}
logged() { grep -F "driver call failed" "$CLUSTER/log/node-1-kubelet.log" | grep -F "odd~$1" | tail -n 1; }
file_left() { on node-1 find /var/lib/kubelet/pods -path '*/odd~leaves-file/*' -name file; }
refused_by_mount() {
    eventually 20 has_event "odd-$1" FailedMount
    what "$1"
}

# odd_gone: the file would keep its pod's directory for ever, and the hung call its pod. A call may
# leave another until the pod is gone.
odd_gone() {
    k delete pod --all --wait=false >/dev/null
    # shellcheck disable=SC2016 # for that shell
    on node-1 bash -c 'kill $(cat /run/odd.pids)'
    remove pod --all
    on node-1 find /var/lib/kubelet/pods -path '*/odd~leaves-file/*' -name file -delete
    on node-1 find /run -maxdepth 1 -name 'odd.*' -delete
}
