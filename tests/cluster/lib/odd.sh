#!/usr/bin/env bash
# Drivers with one odd reply each, and what kubelet makes of it. Sourced by the chapter truth.

# What each prints for `mount`, after it has mounted. By name, in the order of docs/kubelet-truth.md.
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
    [hung]='sleep 600'
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

odd_cases() {
    sleep 8
    for name in "${!ODD[@]}" "${!ODD_INIT[@]}"; do
        echo "== $name: $(k get pod odd-$name -o jsonpath='{.status.phase}') mounts $(on node-1 grep -c '^mount$' /run/odd.$name)"
        k get events --field-selector "involvedObject.name=odd-$name,type=Warning" -o 'jsonpath={range .items[*]}{.reason}|{.count}|{.message}{"\n"}{end}'
    done
}
