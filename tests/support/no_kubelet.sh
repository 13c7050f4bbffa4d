# shellcheck shell=sh
# For a mount namespace of a test's own, with private propagation: there is no kubelet on this
# machine, as far as can be seen in it. Volumes of a kubelet's are let go of, here and nowhere else,
# and where drivers, pods and flexvol's own state can be, there is nothing. What is not there is not
# made, and nothing is mounted on what a test makes.

if grep -q ' shared:' /proc/self/mountinfo; then
    echo "not in a mount namespace of its own with private propagation: what is unmounted here would be everywhere" >&2
    exit 1
fi
# The table writes a space as \040. The last mount is let go of first; one whose server is silent is
# not looked at.
awk '$5 ~ "/volumes/[^/]+~[^/]+/" || $5 ~ "/plugins/kubernetes.io/flexvolume/" { print $5 }' /proc/self/mountinfo |
    tac | sed 's/\\/\\0/g' | while read -r no_kubelet; do
        umount --lazy --no-canonicalize --internal-only -- "$(printf %b "$no_kubelet")" 2>/dev/null || :
    done
# The directories of every platform that `flexvol locate` knows.
for no_kubelet in /usr/libexec/kubernetes /usr/libexec/k0s /etc/kubernetes /etc/origin/kubelet-plugins \
    /home/kubernetes /opt/rke/var/lib/kubelet /var/lib/kubelet /var/lib/microshift /var/lib/flexvol /run/flexvol; do
    [ ! -d "$no_kubelet" ] || mount -t tmpfs -o mode=755 no-kubelet "$no_kubelet" || exit
done
