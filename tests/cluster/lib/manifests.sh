#!/usr/bin/env bash
# Manifests before the real API server, which knows every field and takes none that is not its own.
# Nothing is made. Sourced by the chapter deployment.

readonly OUR_IMAGE=registry.example/flexvol:1

# strictly_valid FILE|DIRECTORY: prints only what the API server says against it, and how many
# objects it took if that is none.
strictly_valid() {
    local said
    said=$(kube apply --dry-run=server --validate=strict --filename "$@" 2>&1)
    grep -vE ' (created|configured|unchanged) \(server dry run\)$' <<<"$said"
    grep -qF '(server dry run)' <<<"$said" || echo "no object in $*"
}

# An object a line, without the kind that only the API server of OpenShift knows.
own_kinds() { jq --compact-output '.items[] | select(.kind != "SecurityContextConstraints")'; }

# Each object that the manifest of any platform has, and all that adds an object or a field.
platforms_valid() {
    local platforms platform policy
    policy=$(mktemp) && echo '{}' >"$policy"
    platforms=$(flexvol manifest daemonset --platform none tmpfs 2>&1 |
        sed -n 's/.*possible values: \(.*\)]$/\1/p' | tr -d ,)
    for platform in $platforms; do
        # It has no plugin directory, and the answer says so.
        [[ $platform != talos ]] || continue
        flexvol --json manifest daemonset --platform "$platform" --image "$OUR_IMAGE" tmpfs | own_kinds
    done | sort --unique | strictly_valid -
    [[ $(wc -w <<<"$platforms") -ge 18 ]] || echo "only these platforms: $platforms"
    flexvol manifest daemonset --image "$OUR_IMAGE" --policy "$policy" --set size=1Mi --take-over --allow-downgrade \
        --uninstall-on-exit tmpfs |
        strictly_valid -
    rm -- "$policy"
}

kustomize_valid() {
    local directory said
    directory=$(mktemp -d)
    said=$(flexvol manifest kustomize --image "$OUR_IMAGE" --output "$directory" tmpfs 2>&1) || echo "$said"
    kube kustomize "$directory" | strictly_valid -
    rm -r -- "$directory"
}

# A DaemonSet of someone else's, which gets the patch for real: of one that is not there nothing
# can be changed.
init_container_valid() {
    kube create --namespace flexvol --filename - >/dev/null <<'YAML'
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: mine}
spec:
  selector: {matchLabels: {app: mine}}
  template:
    metadata: {labels: {app: mine}}
    spec:
      nodeSelector: {none: such}
      containers: [{name: c, image: tests.flexvol.dev/busybox:1}]
YAML
    flexvol manifest init-container --image "$OUR_IMAGE" tmpfs >"$CLUSTER/patch.yaml"
    kube --namespace flexvol patch daemonset mine --patch-file "$CLUSTER/patch.yaml" --dry-run=server -o json |
        jq -r '.spec.template.spec | [.initContainers[].command[], .containers[].name] | join(" ")'
}

# yaml_of: what `flexvol explain` shows as its example.
yaml_of() { sed -n '/^Example/,$p' | sed '1d'; }
explained_valid() {
    local driver
    for driver in $(flexvol --json drivers | jq -r '.[].driver'); do
        echo ---
        flexvol explain "$driver" | yaml_of
    done | strictly_valid -
}

# Each block of YAML in the documents.
documents_valid() {
    # shellcheck disable=SC2154 # here is set by lib/cluster.sh
    awk '/^```yaml/ { inside = 1; print "---"; next } /^```/ { inside = 0 } inside' \
        "$here"/../../{README.md,docs/*.md,docs/drivers/*.md} | strictly_valid -
}

misspelt() {
    strictly_valid - <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: misspelt}
spec: {containers: [{name: c, image: i}], flexVolumes: []}
YAML
}
